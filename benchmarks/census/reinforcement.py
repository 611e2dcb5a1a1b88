"""Agents' losses on batches of steps, and preferences."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, whole

STATE, ACTIONS, WIDTH, GAMMA = 4, 3, 16, 0.99


def layer_init(layer: nn.Linear, std: float = np.sqrt(2), bias_const: float = 0.0) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class DQN(nn.Module):
    """Deep Q-learning (Mnih et al. 2015), or its double (van Hasselt et al. 2016)."""

    def __init__(self, double: bool) -> None:
        super().__init__()
        self.double = double
        self.policy_net = nn.Sequential(
            nn.Linear(STATE, WIDTH), nn.ReLU(), nn.Linear(WIDTH, ACTIONS)
        )
        self.target_net = copy.deepcopy(self.policy_net).requires_grad_(False)
        self.criterion = nn.SmoothL1Loss()

    def forward(
        self, state: Tensor, action: Tensor, reward: Tensor, after: Tensor, done: Tensor
    ) -> Tensor:
        values = self.policy_net(state).gather(1, action.unsqueeze(1))
        with torch.no_grad():
            if self.double:
                best = self.policy_net(after).argmax(dim=1, keepdim=True)
                next_values = self.target_net(after).gather(1, best).squeeze(1)
            else:
                next_values = self.target_net(after).max(1).values
            expected = next_values * GAMMA * (1 - done) + reward
        return self.criterion(values, expected.unsqueeze(1))


class Dueling(nn.Module):
    """A dueling net (Wang et al. 2016) on frames of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(2, 4, 4, stride=2), nn.ReLU(), nn.Flatten())
        self.value, self.advantage = nn.Linear(4 * 49, 1), nn.Linear(4 * 49, ACTIONS)

    def forward(self, frames: Tensor) -> Tensor:
        h = self.conv(frames / 255.0)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(dim=1, keepdim=True)


class PPO(nn.Module):
    """The clipped loss of PPO (Schulman et al. 2017), as in CleanRL."""

    def __init__(self, clip_coef: float = 0.2) -> None:
        super().__init__()
        self.clip_coef = clip_coef
        self.critic = nn.Sequential(
            layer_init(nn.Linear(STATE, WIDTH)), nn.Tanh(), layer_init(nn.Linear(WIDTH, 1), 1.0)
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(STATE, WIDTH)),
            nn.Tanh(),
            layer_init(nn.Linear(WIDTH, ACTIONS), std=0.01),
        )

    def forward(
        self, obs: Tensor, action: Tensor, old: Tensor, advantages: Tensor, returns: Tensor
    ) -> Tensor:
        probs = Categorical(logits=self.actor(obs))
        newlogprob, entropy = probs.log_prob(action), probs.entropy()
        newvalue = self.critic(obs).view(-1)
        ratio = (newlogprob - old).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        pg_loss1 = -advantages * ratio
        pg_loss2 = -advantages * torch.clamp(ratio, 1 - self.clip_coef, 1 + self.clip_coef)
        pg_loss = torch.max(pg_loss1, pg_loss2).mean()
        v_loss = 0.5 * ((newvalue - returns) ** 2).mean()
        return pg_loss - 0.01 * entropy.mean() + v_loss * 0.5


class Reinforce(nn.Module):
    """REINFORCE (Williams 1992) with a Gaussian policy and a baseline."""

    def __init__(self) -> None:
        super().__init__()
        self.affine1, self.dropout = nn.Linear(STATE, WIDTH), nn.Dropout(p=0.6)
        self.mean, self.baseline = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 1)
        self.log_std = nn.Parameter(torch.zeros(1, 2))

    def forward(self, state: Tensor, action: Tensor, returns: Tensor) -> Tensor:
        x = F.relu(self.dropout(self.affine1(state)))
        mean = self.mean(x)
        dist = Normal(mean, torch.exp(self.log_std.expand_as(mean)))
        value = self.baseline(x).squeeze(-1)
        advantage = returns - value.detach()
        policy = -(dist.log_prob(action).sum(1) * advantage).mean()
        return policy + F.smooth_l1_loss(value, returns) - 0.01 * dist.entropy().sum(1).mean()


class SAC(nn.Module):
    """The actor of soft actor-critic (Haarnoja et al. 2018), its critics held still."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc_mean = nn.Linear(STATE, WIDTH), nn.Linear(WIDTH, 2)
        self.fc_logstd = nn.Linear(WIDTH, 2)
        self.qf1, self.qf2 = (
            nn.Sequential(nn.Linear(STATE + 2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
            for _ in range(2)
        )
        for q in (self.qf1, self.qf2):
            q.requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.fc1(x))
        mean, log_std = self.fc_mean(h), torch.tanh(self.fc_logstd(h))
        log_std = -5 + 0.5 * (2 + 5) * (log_std + 1)
        normal = Normal(mean, log_std.exp())
        x_t = normal.rsample()
        y_t = torch.tanh(x_t)
        log_prob = normal.log_prob(x_t) - torch.log(1 - y_t.pow(2) + 1e-6)
        log_prob = log_prob.sum(1, keepdim=True)
        pair = torch.cat([x, y_t], 1)
        min_qf = torch.min(self.qf1(pair), self.qf2(pair))
        alpha = self.log_alpha.exp()
        actor_loss = ((alpha.detach() * log_prob) - min_qf).mean()
        return actor_loss + (-alpha * (log_prob.detach() - 2.0)).mean()


class C51(nn.Module):
    """A distribution of returns (Bellemare et al. 2017) on fixed atoms."""

    atoms: Tensor

    def __init__(self, n_atoms: int = 5) -> None:
        super().__init__()
        self.n = n_atoms
        self.register_buffer("atoms", torch.linspace(-2, 2, steps=n_atoms))
        self.network = nn.Sequential(
            nn.Linear(STATE, WIDTH), nn.ReLU(), nn.Linear(WIDTH, ACTIONS * n_atoms)
        )

    def forward(self, x: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        pmfs = torch.softmax(self.network(x).view(len(x), ACTIONS, self.n), dim=2)
        delta_z = self.atoms[1] - self.atoms[0]
        b = ((reward[:, None] + GAMMA * self.atoms).clamp(-2, 2) - self.atoms[0]) / delta_z
        lower, upper = b.floor().clamp(0, self.n - 1), b.ceil().clamp(0, self.n - 1)
        share = torch.full_like(b, 1 / self.n)
        target = torch.zeros_like(b)
        target.scatter_add_(1, lower.long(), (upper + (lower == upper).float() - b) * share)
        target.scatter_add_(1, upper.long(), (b - lower) * share)
        old_pmfs = pmfs[torch.arange(len(x)), action]
        return (-(target * old_pmfs.clamp(min=1e-5, max=1 - 1e-5).log()).sum(-1)).mean()


class DPO(nn.Module):
    """Direct preference optimisation (Rafailov et al. 2023) against a net held still."""

    def __init__(self, vocabulary: int = 21, beta: float = 0.1) -> None:
        super().__init__()
        self.beta = beta
        self.policy = nn.Sequential(nn.Embedding(vocabulary, WIDTH), nn.Linear(WIDTH, vocabulary))
        self.reference = copy.deepcopy(self.policy)
        for p in self.reference.parameters():
            p.requires_grad_(False)

    @staticmethod
    def logps(model: nn.Module, ids: Tensor) -> Tensor:
        logits, labels = model(ids)[:, :-1, :], ids[:, 1:].clone()
        loss_mask = labels != 1
        labels[labels == 1] = 0
        per_token = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2))
        return (per_token.squeeze(2) * loss_mask).sum(-1)

    def forward(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        both_ids = torch.cat([chosen, rejected], dim=0)
        policy = self.logps(self.policy, both_ids)
        with torch.no_grad():
            reference = self.logps(self.reference, both_ids)
        better, worse = (policy - reference).split(chosen.shape[0])
        return -F.logsigmoid(self.beta * (better - worse)).mean()


class RewardModel(nn.Module):
    """A reward of the last word that is not padding, compared by pairs (Ouyang et al. 2022)."""

    def __init__(self, vocabulary: int = 21) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.v_head = nn.Linear(WIDTH, 1, bias=False)

    def reward(self, ids: Tensor) -> Tensor:
        rewards = self.v_head(self.gru(self.embed(ids))[0]).squeeze(-1)
        last = (torch.ne(ids, 0).sum(-1) - 1).clamp(min=0)
        return rewards[torch.arange(ids.shape[0]), last]

    def forward(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return -torch.log(torch.sigmoid(self.reward(chosen) - self.reward(rejected))).mean()


acted = both(normal((STATE,)), whole((ACTIONS, ())))
stepped = both(acted, normal((), (STATE,)), whole((2, ())))
compared = whole((21, (7,)), (21, (7,)))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "dqn": Net(lambda: DQN(double=False), stepped, loss="own"),
        "double dqn": Net(lambda: DQN(double=True), stepped, loss="own"),
        "dueling dqn": Net(Dueling, whole((256, (2, 16, 16)))),
        "ppo": Net(PPO, both(acted, normal((), (), ())), loss="own"),
        "reinforce": Net(Reinforce, normal((STATE,), (2,), ()), loss="own"),
        "sac actor": Net(SAC, normal((STATE,)), loss="own"),
        "c51": Net(C51, both(acted, normal(())), loss="own"),
        "dpo": Net(DPO, compared, loss="own"),
        "reward model": Net(RewardModel, compared, loss="own"),
    }
)
