"""Why a policy fails, where, and the smallest change that repairs it."""
