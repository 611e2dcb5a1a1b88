"""Recommenders and tables, as their authors write them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, whole

FIELDS = (7, 5, 9)
DIM, DENSE = 4, 6


class DLRM(nn.Module):
    """DLRM (Naumov et al. 2019): bags of features, their products and two perceptrons."""

    def __init__(self) -> None:
        super().__init__()
        self.emb_l = nn.ModuleList([nn.EmbeddingBag(n, DIM, mode="sum") for n in FIELDS])
        self.bot_l = nn.Sequential(nn.Linear(DENSE, 8), nn.ReLU(), nn.Linear(8, DIM), nn.ReLU())
        pairs = (len(FIELDS) + 1) * len(FIELDS) // 2
        self.top_l = nn.Sequential(
            nn.Linear(DIM + pairs, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid()
        )

    def interact_features(self, x: Tensor, ly: list[Tensor]) -> Tensor:
        batch_size, d = x.shape
        T = torch.cat([x, *ly], dim=1).view((batch_size, -1, d))
        Z = torch.bmm(T, torch.transpose(T, 1, 2))
        _, ni, nj = Z.shape
        li = torch.tensor([i for i in range(ni) for j in range(i)])
        lj = torch.tensor([j for i in range(nj) for j in range(i)])
        return torch.cat([x, Z[:, li, lj]], dim=1)

    def forward(self, dense_x: Tensor, sparse: Tensor, clicks: Tensor) -> tuple[Tensor, Tensor]:
        x = self.bot_l(dense_x)
        ly = [E(sparse[:, k]) for k, E in enumerate(self.emb_l)]
        p = self.top_l(self.interact_features(x, ly))
        return nn.BCELoss(reduction="mean")(p, clicks.float().unsqueeze(1)), p


class FeaturesEmbedding(nn.Module):
    """One table for all fields."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sum(FIELDS), dim)
        self.offsets = np.array((0, *np.cumsum(FIELDS)[:-1]), dtype=np.int64)
        nn.init.xavier_uniform_(self.embedding.weight.data)

    def forward(self, x: Tensor) -> Tensor:
        x = x + x.new_tensor(self.offsets).unsqueeze(0)
        return self.embedding(x)


def perceptron(inside: int, outside: int = 1) -> nn.Sequential:
    """A perceptron with batch norm and dropout."""
    return nn.Sequential(
        nn.Linear(inside, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(p=0.2),
        nn.Linear(16, outside),
    )


class DeepFM(nn.Module):
    """Factorisation machine and deep net (Guo et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bias = FeaturesEmbedding(1), nn.Parameter(torch.zeros((1,)))
        self.embedding = FeaturesEmbedding(DIM)
        self.mlp = perceptron(len(FIELDS) * DIM)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        embed_x = self.embedding(x)
        square_of_sum = torch.sum(embed_x, dim=1) ** 2
        sum_of_square = torch.sum(embed_x**2, dim=1)
        fm = 0.5 * torch.sum(square_of_sum - sum_of_square, dim=1, keepdim=True)
        linear = torch.sum(self.fc(x), dim=1) + self.bias
        x = linear + fm + self.mlp(embed_x.view(-1, len(FIELDS) * DIM))
        return F.binary_cross_entropy(torch.sigmoid(x.squeeze(1)), y.float())


class WideAndDeep(nn.Module):
    """Wide & Deep (Cheng et al. 2016), with crosses as a sum of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Embedding(sum(FIELDS) + 1, 1, padding_idx=0)
        self.embeds = nn.ModuleDict(
            {f"field_{i}": nn.Embedding(n, DIM) for i, n in enumerate(FIELDS)}
        )
        self.norm = nn.BatchNorm1d(DENSE)
        self.deep = perceptron(len(FIELDS) * DIM + DENSE)

    def forward(self, fields: Tensor, numbers: Tensor, target: Tensor) -> Tensor:
        wide = self.wide(fields.long()).sum(dim=1)
        embed = [self.embeds[f"field_{i}"](fields[:, i]) for i in range(len(FIELDS))]
        deep = self.deep(torch.cat([torch.cat(embed, 1), self.norm(numbers)], 1))
        return F.binary_cross_entropy_with_logits((wide + deep).view(-1), target.float())


class DCNv2(nn.Module):
    """Crosses of low rank with a mixture of experts (Wang et al. 2021)."""

    def __init__(self, layers: int = 2, experts: int = 2, rank: int = 3) -> None:
        super().__init__()
        size = len(FIELDS) * DIM
        self.embedding = FeaturesEmbedding(DIM)
        self.U = nn.Parameter(torch.randn(layers, experts, size, rank) * 0.1)
        self.V = nn.Parameter(torch.randn(layers, experts, size, rank) * 0.1)
        self.C = nn.Parameter(torch.randn(layers, experts, rank, rank) * 0.1)
        self.bias = nn.Parameter(torch.zeros(layers, size, 1))
        self.gating = nn.ModuleList([nn.Linear(size, 1, bias=False) for _ in range(experts)])
        self.head = nn.Linear(size, 2)

    def forward(self, fields: Tensor) -> Tensor:
        x_0 = self.embedding(fields).flatten(start_dim=1).unsqueeze(2)
        x_l = x_0
        for i in range(self.U.shape[0]):
            outputs, scores = [], []
            for expert, gate in enumerate(self.gating):
                scores.append(gate(x_l.squeeze(2)))
                v_x = torch.tanh(torch.matmul(self.V[i][expert].t(), x_l))
                v_x = torch.tanh(torch.matmul(self.C[i][expert], v_x))
                uv_x = torch.matmul(self.U[i][expert], v_x)
                outputs.append((x_0 * (uv_x + self.bias[i])).squeeze(2))
            moe = torch.matmul(torch.stack(outputs, 2), torch.stack(scores, 1).softmax(1))
            x_l = moe + x_l
        return self.head(x_l.squeeze(2))


class AutoInt(nn.Module):
    """Self-attention over fields (Song et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = FeaturesEmbedding(DIM)
        self.atten_embedding = nn.Linear(DIM, 8)
        self.self_attns = nn.ModuleList(
            [nn.MultiheadAttention(8, 2, dropout=0.1) for _ in range(2)]
        )
        self.v_res_embedding = nn.Linear(DIM, 8)
        self.attn_fc = nn.Linear(len(FIELDS) * 8, 2)

    def forward(self, x: Tensor) -> Tensor:
        embed_x = self.embedding(x)
        cross_term = self.atten_embedding(embed_x).transpose(0, 1)
        for self_attn in self.self_attns:
            cross_term, _ = self_attn(cross_term, cross_term, cross_term)
        cross_term = cross_term.transpose(0, 1)
        cross_term = cross_term + self.v_res_embedding(embed_x)
        return self.attn_fc(F.relu(cross_term).contiguous().view(-1, len(FIELDS) * 8))


class NCF(nn.Module):
    """Neural collaborative filtering (He et al. 2017), both halves."""

    def __init__(self, users: int = 11, items: int = 13) -> None:
        super().__init__()
        self.embed_user_GMF, self.embed_item_GMF = (
            nn.Embedding(users, DIM),
            nn.Embedding(items, DIM),
        )
        self.embed_user_MLP, self.embed_item_MLP = nn.Embedding(users, 8), nn.Embedding(items, 8)
        self.MLP_layers = nn.Sequential(nn.Dropout(p=0.0), nn.Linear(16, DIM), nn.ReLU())
        self.predict_layer = nn.Linear(DIM * 2, 1)
        for m in self.modules():
            if isinstance(m, nn.Embedding):
                nn.init.normal_(m.weight, std=0.01)

    def forward(self, user: Tensor, item: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        output_GMF = self.embed_user_GMF(user) * self.embed_item_GMF(item)
        interaction = torch.cat((self.embed_user_MLP(user), self.embed_item_MLP(item)), -1)
        concat = torch.cat((output_GMF, self.MLP_layers(interaction)), -1)
        prediction = self.predict_layer(concat).view(-1)
        return nn.BCEWithLogitsLoss()(prediction, label.float()), prediction


class BPR(nn.Module):
    """Matrix factorisation under the pairwise loss of BPR (Rendle et al. 2009)."""

    def __init__(self, users: int = 11, items: int = 11) -> None:
        super().__init__()
        self.W = nn.Parameter(nn.init.xavier_uniform_(torch.empty(users, DIM)))
        self.H = nn.Parameter(nn.init.xavier_uniform_(torch.empty(items, DIM)))
        self.bias = nn.Parameter(torch.zeros(items))

    def forward(self, u: Tensor, i: Tensor, j: Tensor) -> Tensor:
        u_, i_, j_ = self.W[u, :], self.H[i, :], self.H[j, :]
        x_ui = torch.mul(u_, i_).sum(dim=1) + self.bias[i]
        x_uj = torch.mul(u_, j_).sum(dim=1) + self.bias[j]
        log_prob = F.logsigmoid(x_ui - x_uj).sum()
        decay = u_.norm(dim=1).pow(2).sum() + i_.norm(dim=1).pow(2).sum()
        return -log_prob + 0.025 * decay


class TwoTower(nn.Module):
    """Two towers with other rows of the batch as negatives (Yi et al. 2019)."""

    def __init__(self, temperature: float = 0.05) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(11, DIM), nn.Embedding(11, DIM)
        self.user_tower = nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, DIM))
        self.item_tower = nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, DIM))
        self.temperature = temperature

    def forward(self, user_id: Tensor, item_id: Tensor) -> Tensor:
        u = F.normalize(self.user_tower(self.user(user_id)), p=2, dim=-1)
        v = F.normalize(self.item_tower(self.item(item_id)), p=2, dim=-1)
        scores = torch.matmul(u, v.T) / self.temperature
        same = item_id.unsqueeze(0) == item_id.unsqueeze(1)
        same = same & ~torch.eye(len(item_id), dtype=torch.bool)
        scores = scores.masked_fill(same, float("-inf"))
        return F.cross_entropy(scores, torch.arange(scores.size(0), device=scores.device))


class SASRec(nn.Module):
    """Self-attention over what a user bought (Kang and McAuley 2018)."""

    def __init__(self, items: int = 12, length: int = 6, hidden: int = 8) -> None:
        super().__init__()
        self.item_emb = nn.Embedding(items + 1, hidden, padding_idx=0)
        self.pos_emb = nn.Embedding(length, hidden)
        self.attention = nn.MultiheadAttention(hidden, 2, 0.0, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(hidden, eps=1e-8) for _ in range(3)])
        self.conv1, self.conv2 = (nn.Conv1d(hidden, hidden, kernel_size=1) for _ in range(2))

    def log2feats(self, log_seqs: Tensor) -> Tensor:
        seqs = self.item_emb(log_seqs)
        seqs *= self.item_emb.embedding_dim**0.5
        positions = torch.arange(log_seqs.shape[1]).expand_as(log_seqs)
        seqs = seqs + self.pos_emb(positions)
        timeline_mask = (log_seqs == 0).bool()
        seqs *= ~timeline_mask.unsqueeze(-1)
        tl = seqs.shape[1]
        attention_mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool))
        Q = self.norms[0](seqs)
        mha_outputs, _ = self.attention(Q, seqs, seqs, attn_mask=attention_mask)
        seqs = self.norms[1](Q + mha_outputs)
        outputs = self.conv2(F.relu(self.conv1(seqs.transpose(-1, -2)))).transpose(-1, -2)
        return self.norms[2]((outputs + seqs) * ~timeline_mask.unsqueeze(-1))

    def forward(self, log_seqs: Tensor, pos_seqs: Tensor, neg_seqs: Tensor) -> Tensor:
        log_feats = self.log2feats(log_seqs)
        pos_logits = (log_feats * self.item_emb(pos_seqs)).sum(dim=-1)
        neg_logits = (log_feats * self.item_emb(neg_seqs)).sum(dim=-1)
        bce = nn.BCEWithLogitsLoss(reduction="none")
        losses = bce(pos_logits, torch.ones_like(pos_logits))
        losses = losses + bce(neg_logits, torch.zeros_like(neg_logits))
        real = (pos_seqs != 0).float()
        return (losses * real).sum() / real.sum()


class FTTransformer(nn.Module):
    """A transformer of numbers and categories (Gorishniy et al. 2021)."""

    category_offsets: Tensor

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.register_buffer("category_offsets", torch.tensor([0, *FIELDS[:-1]]).cumsum(0))
        self.category_embeddings = nn.Embedding(sum(FIELDS), d)
        self.weight = nn.Parameter(torch.empty(DENSE + 1, d).uniform_(-0.3, 0.3))
        self.bias = nn.Parameter(torch.empty(DENSE + len(FIELDS), d).uniform_(-0.3, 0.3))
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm0, self.norm1, self.last = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.linear0, self.linear1 = nn.Linear(d, 2 * 16), nn.Linear(16, d)
        self.head = nn.Linear(d, 1)

    def tokens(self, x_num: Tensor, x_cat: Tensor) -> Tensor:
        x_num = torch.cat([torch.ones(len(x_num), 1, device=x_num.device), x_num], dim=1)
        x = self.weight[None] * x_num[:, :, None]
        x = torch.cat([x, self.category_embeddings(x_cat + self.category_offsets[None])], dim=1)
        return x + torch.cat([torch.zeros(1, self.bias.shape[1]), self.bias])[None]

    def forward(self, x_num: Tensor, x_cat: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(x_num, x_cat)
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm0(x)).view(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        a, gate = self.linear0(self.norm1(x)).chunk(2, dim=-1)
        x = x + self.linear1(a * F.relu(gate))
        x = self.head(F.relu(self.last(x[:, 0]))).squeeze(-1)
        return F.mse_loss(x, y), x


class TabResNet(nn.Module):
    """A residual net of tables (Gorishniy et al. 2021), with label smoothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(DENSE, 8)
        self.norm, self.linear0, self.linear1 = (
            nn.BatchNorm1d(8),
            nn.Linear(8, 16),
            nn.Linear(16, 8),
        )
        self.head = nn.Linear(8, 3)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        z = F.dropout(F.relu(self.linear0(self.norm(x))), 0.1, self.training)
        logits = self.head(F.relu(x + F.dropout(self.linear1(z), 0.1, self.training)))
        return self.criterion(logits, labels), logits


fields = whole((min(FIELDS), (len(FIELDS),)))
clicked = both(fields, whole((2, ())))
mixed = both(fields, normal((DENSE,)), whole((2, ())))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "dlrm": Net(
            DLRM,
            both(normal((DENSE,)), whole((min(FIELDS), (len(FIELDS), 2)), (2, ()))),
            loss="own",
            labels="clicks",
        ),
        "deepfm": Net(DeepFM, clicked, loss="own", labels="y"),
        "wide and deep": Net(WideAndDeep, mixed, loss="own", labels="target"),
        "dcn v2": Net(DCNv2, fields),
        "autoint": Net(AutoInt, fields),
        "ncf": Net(NCF, whole((11, ()), (13, ()), (2, ())), loss="own", labels="label"),
        "bpr": Net(BPR, whole((11, ()), (11, ()), (11, ())), loss="own"),
        "two towers": Net(TwoTower, whole((11, ()), (11, ())), loss="own"),
        "sasrec": Net(SASRec, whole((13, (6,)), (13, (6,)), (13, (6,))), loss="own"),
        "ft-transformer": Net(
            FTTransformer, both(normal((DENSE,)), fields, normal(())), loss="own", labels="y"
        ),
        "tabular resnet": Net(
            TabResNet, both(normal((DENSE,)), whole((3, ()))), loss="own", labels="labels"
        ),
    }
)
