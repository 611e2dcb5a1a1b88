"""Damaged and hostile files, killed processes, full disks: what a user may meet, by parts."""
