"""Graphs on a dense adjacency, sets and clouds of points."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, normal

NODES, FEATURES, WIDTH, CLASSES, POINTS = 6, 5, 8, 3, 10


def graphs(generator: torch.Generator, batch: int) -> tuple[Tensor, ...]:
    """Draws features of nodes and a symmetric adjacency with loops."""
    x = torch.randn(batch, NODES, FEATURES, generator=generator)
    edges = torch.rand(batch, NODES, NODES, generator=generator) < 0.2
    adjacency = (edges | edges.transpose(1, 2) | torch.eye(NODES, dtype=torch.bool)).float()
    return x, adjacency


class GraphConvolution(nn.Module):
    """A layer of the GCN (Kipf and Welling 2017)."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        stdv = 1.0 / self.weight.size(1) ** 0.5
        self.weight.data.uniform_(-stdv, stdv)
        self.bias.data.uniform_(-stdv, stdv)

    def forward(self, input: Tensor, adj: Tensor) -> Tensor:
        support = torch.matmul(input, self.weight)
        return torch.matmul(adj, support) + self.bias


class GCN(nn.Module):
    """GCN with its symmetric normalisation inside."""

    def __init__(self) -> None:
        super().__init__()
        self.gc1 = GraphConvolution(FEATURES, WIDTH)
        self.gc2 = GraphConvolution(WIDTH, CLASSES)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        d_inv_sqrt = adj.sum(-1).pow(-0.5)
        d_inv_sqrt[torch.isinf(d_inv_sqrt)] = 0.0
        adj = d_inv_sqrt.unsqueeze(-1) * adj * d_inv_sqrt.unsqueeze(-2)
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, 0.5, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=-1)


class GraphAttentionLayer(nn.Module):
    """A layer of the GAT (Velickovic et al. 2018)."""

    def __init__(self, inside: int, outside: int, alpha: float = 0.2, concat: bool = True) -> None:
        super().__init__()
        self.out_features, self.concat = outside, concat
        self.W = nn.Parameter(torch.empty(size=(inside, outside)))
        nn.init.xavier_uniform_(self.W.data, gain=1.414)
        self.a = nn.Parameter(torch.empty(size=(2 * outside, 1)))
        nn.init.xavier_uniform_(self.a.data, gain=1.414)
        self.leakyrelu = nn.LeakyReLU(alpha)

    def forward(self, h: Tensor, adj: Tensor) -> Tensor:
        Wh = torch.matmul(h, self.W)
        Wh1 = torch.matmul(Wh, self.a[: self.out_features, :])
        Wh2 = torch.matmul(Wh, self.a[self.out_features :, :])
        e = self.leakyrelu(Wh1 + Wh2.mT)
        zero_vec = -9e15 * torch.ones_like(e)
        attention = torch.where(adj > 0, e, zero_vec)
        attention = F.softmax(attention, dim=-1)
        attention = F.dropout(attention, 0.6, training=self.training)
        h_prime = torch.matmul(attention, Wh)
        return F.elu(h_prime) if self.concat else h_prime


class GAT(nn.Module):
    """GAT with two heads."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.attentions = [GraphAttentionLayer(FEATURES, WIDTH) for _ in range(heads)]
        for i, attention in enumerate(self.attentions):
            self.add_module(f"attention_{i}", attention)
        self.out_att = GraphAttentionLayer(WIDTH * heads, CLASSES, concat=False)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x = F.dropout(x, 0.6, training=self.training)
        x = torch.cat([att(x, adj) for att in self.attentions], dim=2)
        x = F.dropout(x, 0.6, training=self.training)
        return F.log_softmax(F.elu(self.out_att(x, adj)), dim=-1)


class GIN(nn.Module):
    """Graph isomorphism net (Xu et al. 2019), graphs classified by the sum of their nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(2))
        self.mlps = nn.ModuleList([self.mlp(FEATURES), self.mlp(WIDTH)])
        self.heads = nn.ModuleList([nn.Linear(n, CLASSES) for n in (FEATURES, WIDTH, WIDTH)])

    @staticmethod
    def mlp(inside: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inside, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        score = self.heads[0](x.sum(dim=1))
        for layer, mlp in enumerate(self.mlps):
            x = F.relu(mlp(torch.bmm(adj, x) + (1 + self.eps[layer]) * x))
            score += F.dropout(self.heads[layer + 1](x.sum(dim=1)), 0.5, training=self.training)
        return score


class MPNN(nn.Module):
    """GraphSAGE's mean (Hamilton et al. 2017) and GRU updates (Gilmer et al. 2017)."""

    def __init__(self, steps: int = 2) -> None:
        super().__init__()
        self.steps = steps
        self.embed, self.message = nn.Linear(FEATURES, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.update, self.readout = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        b, n, _ = x.shape
        h = self.embed(x)
        for _ in range(self.steps):
            senders = h.unsqueeze(1).expand(b, n, n, WIDTH)
            receivers = h.unsqueeze(2).expand(b, n, n, WIDTH)
            messages = F.relu(self.message(torch.cat([senders, receivers], dim=-1)))
            neighbours = (messages * adj.unsqueeze(-1)).sum(2) / adj.sum(2, keepdim=True)
            h = self.update(neighbours.reshape(-1, WIDTH), h.reshape(-1, WIDTH)).view(b, n, -1)
        return self.readout(h.mean(dim=1))


class EGNN(nn.Module):
    """Equivariant graph net (Satorras et al. 2021) that predicts an energy."""

    def __init__(self) -> None:
        super().__init__()
        self.edge_mlp = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.coord_mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))
        self.energy = nn.Linear(WIDTH, 1)

    def forward(self, coord: Tensor, target: Tensor) -> Tensor:
        coord_diff = coord[:, :, None] - coord[:, None, :]
        radial = torch.sum(coord_diff**2, -1, keepdim=True)
        edge_feat = self.edge_mlp(radial)
        trans = coord_diff / (torch.sqrt(radial + 1e-8) + 1) * self.coord_mlp(edge_feat)
        moved = coord + trans.mean(dim=2)
        distance = torch.cdist(moved, moved.detach() + 0.1).unsqueeze(-1)
        energy = self.energy(self.edge_mlp(distance).sum(dim=(1, 2))).squeeze(-1)
        return F.l1_loss(energy, target)


class TNet(nn.Module):
    """PointNet's alignment."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.conv1, self.conv2 = nn.Conv1d(k, WIDTH, 1), nn.Conv1d(WIDTH, 2 * WIDTH, 1)
        self.bn1, self.bn2 = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(2 * WIDTH)
        self.fc = nn.Linear(2 * WIDTH, k * k)

    def forward(self, x: Tensor) -> Tensor:
        batchsize = x.size()[0]
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = torch.max(x, 2, keepdim=True)[0]
        x = self.fc(x.view(-1, 2 * WIDTH))
        iden = torch.eye(self.k).flatten().view(1, self.k * self.k).repeat(batchsize, 1)
        return (x + iden.to(x.device)).view(-1, self.k, self.k)


class PointNet(nn.Module):
    """PointNet (Qi et al. 2017) with the loss that keeps its alignment orthogonal."""

    def __init__(self) -> None:
        super().__init__()
        self.stn, self.fstn = TNet(3), TNet(WIDTH)
        self.conv1, self.bn1 = nn.Conv1d(3, WIDTH, 1), nn.BatchNorm1d(WIDTH)
        self.conv2, self.bn2 = nn.Conv1d(WIDTH, 16, 1), nn.BatchNorm1d(16)
        self.fc = nn.Sequential(
            nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
        )

    def forward(self, points: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        x = points.transpose(2, 1)
        x = torch.bmm(x.transpose(2, 1), self.stn(x)).transpose(2, 1)
        x = F.relu(self.bn1(self.conv1(x)))
        trans = self.fstn(x)
        x = torch.bmm(x.transpose(2, 1), trans).transpose(2, 1)
        x = self.bn2(self.conv2(x))
        x = torch.max(x, 2, keepdim=True)[0].view(-1, 16)
        pred = F.log_softmax(self.fc(x), dim=1)
        eye = torch.eye(trans.size()[1])[None, :, :]
        away = torch.norm(torch.bmm(trans, trans.transpose(2, 1)) - eye, dim=(1, 2))
        return F.nll_loss(pred, label) + 0.001 * torch.mean(away), pred


def get_graph_feature(x: Tensor, k: int) -> Tensor:
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    xx = torch.sum(x**2, dim=1, keepdim=True)
    pairwise_distance = -xx - inner - xx.transpose(2, 1)
    idx = pairwise_distance.topk(k=k, dim=-1)[1]
    batch_size, num_dims, num_points = x.size()
    idx_base = torch.arange(0, batch_size, device=x.device).view(-1, 1, 1) * num_points
    idx = (idx + idx_base).view(-1)
    x = x.transpose(2, 1).contiguous()
    feature = x.view(batch_size * num_points, -1)[idx, :]
    feature = feature.view(batch_size, num_points, k, num_dims)
    x = x.view(batch_size, num_points, 1, num_dims).repeat(1, 1, k, 1)
    return torch.cat((feature - x, x), dim=3).permute(0, 3, 1, 2).contiguous()


class DGCNN(nn.Module):
    """Convolutions over nearest neighbours (Wang et al. 2019)."""

    def __init__(self, k: int = 3) -> None:
        super().__init__()
        self.k = k
        self.conv1 = nn.Sequential(nn.Conv2d(6, WIDTH, 1, bias=False), nn.BatchNorm2d(WIDTH))
        self.linear = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, points: Tensor) -> Tensor:
        x = get_graph_feature(points.permute(0, 2, 1), self.k)
        x = F.leaky_relu(self.conv1(x), negative_slope=0.2).max(dim=-1, keepdim=False)[0]
        pooled = [F.adaptive_max_pool1d(x, 1), F.adaptive_avg_pool1d(x, 1)]
        return self.linear(torch.cat([p.view(x.size(0), -1) for p in pooled], 1))


class DeepSets(nn.Module):
    """Deep sets (Zaheer et al. 2017) that sort their members by learnt scores."""

    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(3, WIDTH), nn.ELU(), nn.Linear(WIDTH, WIDTH))
        self.rho = nn.Sequential(nn.Linear(3 * WIDTH, WIDTH), nn.ELU(), nn.Linear(WIDTH, CLASSES))

    def forward(self, members: Tensor) -> Tensor:
        h = self.phi(members)
        ordered, _ = torch.sort(h, dim=1, descending=True)
        return self.rho(torch.cat([h.sum(1), h.amax(dim=1), ordered[:, 1]], dim=-1))


class SAB(nn.Module):
    """Set transformer (Lee et al. 2019) with a learnt seed."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, WIDTH)
        self.S = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, 1, WIDTH)))
        self.mha = nn.ModuleList([nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in "ab"])
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, members: Tensor) -> Tensor:
        x = self.enter(members)
        x = x + self.mha[0](x, x, x)[0]
        seed = self.S.repeat(x.size(0), 1, 1)
        return self.out(self.mha[1](seed, x, x)[0]).squeeze(1)


def labelled_points(generator: torch.Generator, batch: int) -> tuple[Tensor, ...]:
    """Draws clouds of points and their classes."""
    points = torch.randn(batch, POINTS, 3, generator=generator)
    return points, torch.randint(0, CLASSES, (batch,), generator=generator)


points = normal((POINTS, 3))
NETS: Mapping[str, Net] = MappingProxyType(
    {
        "gcn": Net(GCN, graphs),
        "gat": Net(GAT, graphs),
        "gin": Net(GIN, graphs),
        "message passing": Net(MPNN, graphs),
        "egnn": Net(EGNN, normal((NODES, 3), ()), loss="own", labels="target"),
        "pointnet": Net(PointNet, labelled_points, loss="own", labels="label"),
        "dgcnn": Net(DGCNN, points),
        "deep sets": Net(DeepSets, points),
        "set transformer": Net(SAB, points),
    }
)
