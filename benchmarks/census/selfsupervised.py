"""Nets that learn from pairs, views, masks and teachers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, whole

VOCABULARY, LENGTH, WIDTH, DIM = 31, 8, 16, 8


class ImageEncoder(nn.Sequential):
    """A small convolutional encoder."""

    def __init__(self, out: int = DIM) -> None:
        super().__init__(
            nn.Conv2d(3, WIDTH, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(WIDTH, out),
        )


class ResidualAttentionBlock(nn.Module):
    """CLIP's block."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 2)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_fc, self.c_proj = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        mask = torch.empty(LENGTH, LENGTH)
        mask.fill_(float("-inf"))
        mask.triu_(1)
        self.attn_mask = mask

    def attention(self, x: Tensor) -> Tensor:
        self.attn_mask = self.attn_mask.to(dtype=x.dtype, device=x.device)
        return self.attn(x, x, x, need_weights=False, attn_mask=self.attn_mask)[0]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln_1(x))
        h = self.c_fc(self.ln_2(x))
        return x + self.c_proj(h * torch.sigmoid(1.702 * h))


class CLIP(nn.Module):
    """CLIP (Radford et al. 2021) with a learnt temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = ImageEncoder()
        self.token_embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positional_embedding = nn.Parameter(torch.empty(LENGTH, WIDTH))
        self.transformer = ResidualAttentionBlock()
        self.ln_final = nn.LayerNorm(WIDTH)
        self.text_projection = nn.Parameter(torch.empty(WIDTH, DIM))
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))
        nn.init.normal_(self.positional_embedding, std=0.01)
        nn.init.normal_(self.text_projection, std=WIDTH**-0.5)

    def encode_text(self, text: Tensor) -> Tensor:
        x = self.token_embedding(text) + self.positional_embedding
        x = self.transformer(x.permute(1, 0, 2)).permute(1, 0, 2)
        x = self.ln_final(x)
        return x[torch.arange(x.shape[0]), text.argmax(dim=-1)] @ self.text_projection

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        image_features = self.visual(image)
        text_features = self.encode_text(text)
        image_features = image_features / image_features.norm(dim=1, keepdim=True)
        text_features = text_features / text_features.norm(dim=1, keepdim=True)
        logits_per_image = self.logit_scale.exp() * image_features @ text_features.t()
        labels = torch.arange(logits_per_image.shape[0], device=image.device)
        loss = F.cross_entropy(logits_per_image, labels)
        loss = loss + F.cross_entropy(logits_per_image.t(), labels)
        return loss / 2, logits_per_image


class SigLIP(nn.Module):
    """The sigmoid loss of pairs (Zhai et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = ImageEncoder()
        self.text = nn.EmbeddingBag(VOCABULARY, DIM, mode="mean")
        self.logit_scale = nn.Parameter(torch.tensor(np.log(10.0), dtype=torch.float32))
        self.logit_bias = nn.Parameter(torch.tensor(-10.0))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        zimg, ztxt = F.normalize(self.visual(image)), F.normalize(self.text(text))
        logits = zimg @ ztxt.t() * self.logit_scale.exp() + self.logit_bias
        n = logits.size(0)
        labels = 2 * torch.eye(n, device=logits.device) - torch.ones(n, n)
        return -F.logsigmoid(labels * logits).sum() / n


class SimCLR(nn.Module):
    """SimCLR's NT-Xent loss (Chen et al. 2020)."""

    def __init__(self, temperature: float = 0.5) -> None:
        super().__init__()
        self.f = ImageEncoder(WIDTH)
        self.g = nn.Sequential(
            nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, DIM)
        )
        self.temperature = temperature

    def forward(self, x_1: Tensor, x_2: Tensor) -> Tensor:
        batch_size = x_1.shape[0]
        out_1 = F.normalize(self.g(self.f(x_1)), dim=-1)
        out_2 = F.normalize(self.g(self.f(x_2)), dim=-1)
        out = torch.cat([out_1, out_2], dim=0)
        sim_matrix = torch.exp(torch.mm(out, out.t().contiguous()) / self.temperature)
        mask = (torch.ones_like(sim_matrix) - torch.eye(2 * batch_size)).bool()
        sim_matrix = sim_matrix.masked_select(mask).view(2 * batch_size, -1)
        pos_sim = torch.exp(torch.sum(out_1 * out_2, dim=-1) / self.temperature)
        pos_sim = torch.cat([pos_sim, pos_sim], dim=0)
        return (-torch.log(pos_sim / sim_matrix.sum(dim=-1))).mean()


class PairNTXent(nn.Module):
    """NT-Xent with the diagonal filled (Lightning's SimCLR)."""

    def __init__(self, temperature: float = 0.07) -> None:
        super().__init__()
        self.convnet = ImageEncoder()
        self.temperature = temperature

    def forward(self, views: Tensor) -> Tensor:
        feats = self.convnet(views.flatten(0, 1))
        cos_sim = F.cosine_similarity(feats[:, None, :], feats[None, :, :], dim=-1)
        self_mask = torch.eye(cos_sim.shape[0], dtype=torch.bool, device=cos_sim.device)
        cos_sim.masked_fill_(self_mask, -9e15)
        pos_mask = self_mask.roll(shifts=cos_sim.shape[0] // 2, dims=0)
        cos_sim = cos_sim / self.temperature
        nll = -cos_sim[pos_mask] + torch.logsumexp(cos_sim, dim=-1)
        return nll.mean()


class BYOL(nn.Module):
    """BYOL (Grill et al. 2020), its target held still."""

    def __init__(self) -> None:
        super().__init__()
        self.online = ImageEncoder()
        self.target = copy.deepcopy(self.online)
        self.predictor = nn.Sequential(
            nn.Linear(DIM, WIDTH),
            nn.BatchNorm1d(WIDTH),
            nn.ReLU(inplace=True),
            nn.Linear(WIDTH, DIM),
        )
        for p in self.target.parameters():
            p.requires_grad = False

    @staticmethod
    def loss_fn(x: Tensor, y: Tensor) -> Tensor:
        x = F.normalize(x, dim=-1, p=2)
        y = F.normalize(y, dim=-1, p=2)
        return 2 - 2 * (x * y).sum(dim=-1)

    def forward(self, image_one: Tensor, image_two: Tensor) -> Tensor:
        pred_one = self.predictor(self.online(image_one))
        pred_two = self.predictor(self.online(image_two))
        with torch.no_grad():
            proj_one, proj_two = self.target(image_one), self.target(image_two)
        loss_one = self.loss_fn(pred_one, proj_two.detach())
        loss_two = self.loss_fn(pred_two, proj_one.detach())
        return (loss_one + loss_two).mean()


class SimSiam(nn.Module):
    """SimSiam (Chen and He 2021), stopped by detach."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(ImageEncoder(), nn.BatchNorm1d(DIM, affine=False))
        self.predictor = nn.Sequential(nn.Linear(DIM, 4, bias=False), nn.ReLU(), nn.Linear(4, DIM))
        self.criterion = nn.CosineSimilarity(dim=1)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        z1, z2 = self.encoder(x1), self.encoder(x2)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        first = self.criterion(p1, z2.detach()).mean()
        return -(first + self.criterion(p2, z1.detach()).mean()) * 0.5


def off_diagonal(x: Tensor) -> Tensor:
    n, m = x.shape
    assert n == m
    return x.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


class BarlowTwins(nn.Module):
    """Barlow Twins (Zbontar et al. 2021)."""

    def __init__(self, lambd: float = 0.0051) -> None:
        super().__init__()
        self.backbone, self.lambd = ImageEncoder(), lambd
        self.bn = nn.BatchNorm1d(DIM, affine=False)

    def forward(self, y1: Tensor, y2: Tensor) -> Tensor:
        z1, z2 = self.backbone(y1), self.backbone(y2)
        c = self.bn(z1).T @ self.bn(z2)
        c.div_(y1.shape[0])
        on_diag = torch.diagonal(c).add_(-1).pow_(2).sum()
        return on_diag + self.lambd * off_diagonal(c).pow_(2).sum()


class VICReg(nn.Module):
    """VICReg (Bardes et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = ImageEncoder()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = self.backbone(x), self.backbone(y)
        repr_loss = F.mse_loss(x, y)
        x = x - x.mean(dim=0)
        y = y - y.mean(dim=0)
        std_x, std_y = torch.sqrt(x.var(dim=0) + 0.0001), torch.sqrt(y.var(dim=0) + 0.0001)
        std_loss = torch.mean(F.relu(1 - std_x)) / 2 + torch.mean(F.relu(1 - std_y)) / 2
        cov_x, cov_y = (x.T @ x) / (len(x) - 1), (y.T @ y) / (len(y) - 1)
        cov_loss = off_diagonal(cov_x).pow_(2).sum().div(DIM)
        cov_loss = cov_loss + off_diagonal(cov_y).pow_(2).sum().div(DIM)
        return 25 * repr_loss + 25 * std_loss + cov_loss


class MAE(nn.Module):
    """Masked autoencoder (He et al. 2022), with one mask or with one drawn for each batch."""

    mask: Tensor

    def __init__(self, drawn: bool, patch: int = 4, patches: int = 16, keep: int = 4) -> None:
        super().__init__()
        self.patch, self.patches, self.keep, self.drawn = patch, patches, keep, drawn
        self.patch_embed = nn.Linear(3 * patch**2, WIDTH)
        self.pos_embed = nn.Parameter(torch.randn(1, patches, WIDTH) * 0.02, requires_grad=False)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 32, **options)
        self.decoder = nn.TransformerEncoderLayer(WIDTH, 2, 32, **options)
        self.decoder_pred = nn.Linear(WIDTH, 3 * patch**2)
        self.register_buffer("mask", torch.rand(1, patches))

    def patchify(self, imgs: Tensor) -> Tensor:
        p = self.patch
        h = w = imgs.shape[2] // p
        x = imgs.reshape(shape=(imgs.shape[0], 3, h, p, w, p))
        x = torch.einsum("nchpwq->nhwpqc", x)
        return x.reshape(shape=(imgs.shape[0], h * w, p**2 * 3))

    def forward(self, imgs: Tensor) -> Tensor:
        target = self.patchify(imgs)
        N, L, D = target.shape[0], self.patches, WIDTH
        noise = torch.rand(N, L, device=imgs.device) if self.drawn else self.mask.expand(N, -1)
        ids_shuffle = torch.argsort(noise, dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        ids_keep = ids_shuffle[:, : self.keep]
        x = self.patch_embed(target) + self.pos_embed
        x = torch.gather(x, dim=1, index=ids_keep.unsqueeze(-1).repeat(1, 1, D))
        mask = torch.ones([N, L], device=x.device)
        mask[:, : self.keep] = 0
        mask = torch.gather(mask, dim=1, index=ids_restore)
        x = self.encoder(x)
        x = torch.cat([x, self.mask_token.repeat(N, L - self.keep, 1)], dim=1)
        x = torch.gather(x, dim=1, index=ids_restore.unsqueeze(-1).repeat(1, 1, D))
        pred = self.decoder_pred(self.decoder(x + self.pos_embed))
        mean, var = target.mean(dim=-1, keepdim=True), target.var(dim=-1, keepdim=True)
        target = (target - mean) / (var + 1.0e-6) ** 0.5
        loss = ((pred - target) ** 2).mean(dim=-1)
        return (loss * mask).sum() / mask.sum()


class Triplet(nn.Module):
    """A Siamese net under the triplet loss (Schroff et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_net = ImageEncoder()
        self.triplet_loss = nn.TripletMarginLoss(margin=1.0, p=2)

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        embedded = [F.normalize(self.embedding_net(x)) for x in (anchor, positive, negative)]
        return self.triplet_loss(*embedded)


class Contrastive(nn.Module):
    """A Siamese net under the contrastive loss (Hadsell et al. 2006)."""

    def __init__(self, cosine: bool, margin: float = 2.0) -> None:
        super().__init__()
        self.net, self.cosine, self.margin = ImageEncoder(), cosine, margin

    def forward(self, x1: Tensor, x2: Tensor, label: Tensor) -> Tensor:
        o1, o2 = self.net(x1), self.net(x2)
        if self.cosine:
            return F.cosine_embedding_loss(o1, o2, 2 * label - 1, margin=0.5)
        d = F.pairwise_distance(o1, o2)
        hinge = torch.clamp(self.margin - d, min=0.0)
        return torch.mean((1 - label) * torch.pow(d, 2) + label * torch.pow(hinge, 2))


class Distillation(nn.Module):
    """A student of a teacher held still (Hinton et al. 2015)."""

    def __init__(self, classes: int = 5, T: float = 4.0, alpha: float = 0.9) -> None:
        super().__init__()
        self.student, self.teacher = ImageEncoder(classes), ImageEncoder(classes).eval()
        self.teacher.requires_grad_(False)
        self.T, self.alpha = T, alpha

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.student(x)
        with torch.no_grad():
            teacher = self.teacher(x)
        soft = F.log_softmax(outputs / self.T, dim=1)
        kd = nn.KLDivLoss(reduction="batchmean")(soft, F.softmax(teacher / self.T, dim=1))
        hard = F.cross_entropy(outputs, labels) * (1.0 - self.alpha)
        return kd * (self.alpha * self.T * self.T) + hard, outputs


image = normal((3, 16, 16))
views = normal((3, 16, 16), (3, 16, 16))
captioned = both(image, whole((VOCABULARY, (LENGTH,))))
compared = both(views, whole((2, ())))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "clip": Net(CLIP, captioned, loss="own"),
        "siglip": Net(SigLIP, captioned, loss="own"),
        "simclr": Net(SimCLR, views, loss="own"),
        "simclr, diagonal filled": Net(PairNTXent, normal((2, 3, 16, 16)), loss="own"),
        "byol": Net(BYOL, views, loss="own"),
        "simsiam": Net(SimSiam, views, loss="own"),
        "barlow twins": Net(BarlowTwins, views, loss="own"),
        "vicreg": Net(VICReg, views, loss="own"),
        "mae": Net(lambda: MAE(drawn=False), image, loss="own"),
        "mae, mask drawn": Net(lambda: MAE(drawn=True), image, loss="own"),
        "triplet": Net(Triplet, normal(*[(3, 16, 16)] * 3), loss="own"),
        "contrastive": Net(lambda: Contrastive(False), compared, loss="own", labels="label"),
        "cosine embedding": Net(lambda: Contrastive(True), compared, loss="own", labels="label"),
        "distillation": Net(Distillation, both(image, whole((5, ()))), loss="own", labels="labels"),
    }
)
