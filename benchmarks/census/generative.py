"""Generative nets: autoencoders, adversaries, diffusion and flows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, normal, uniform

LATENT, WIDTH = 8, 4


def weights_init(m: nn.Module) -> None:
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    """DCGAN's generator (Radford et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(LATENT, WIDTH * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(WIDTH * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(WIDTH * 4, WIDTH, 4, 2, 1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(True),
            nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input: Tensor) -> Tensor:
        return self.main(input)


class Discriminator(nn.Module):
    """DCGAN's discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, WIDTH, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(WIDTH, WIDTH * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(WIDTH * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(WIDTH * 2, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input: Tensor) -> Tensor:
        return self.main(input)


class GeneratorStep(nn.Module):
    """The generator's loss against a fixed discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.netG, self.netD = Generator(), Discriminator()
        self.apply(weights_init)
        for parameter in self.netD.parameters():
            parameter.requires_grad_(False)
        self.criterion = nn.BCELoss()

    def forward(self, noise: Tensor) -> Tensor:
        fake = self.netG(noise)
        output = self.netD(fake).view(-1)
        label = torch.full((noise.size(0),), 1.0, dtype=torch.float, device=noise.device)
        return self.criterion(output, label)


class DiscriminatorStep(nn.Module):
    """The discriminator's loss on real and made images."""

    def __init__(self) -> None:
        super().__init__()
        self.netD = Discriminator().apply(weights_init)

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        on_real, on_fake = self.netD(real).view(-1), self.netD(fake.detach()).view(-1)
        loss_real = F.binary_cross_entropy(on_real, torch.ones_like(on_real))
        return loss_real + F.binary_cross_entropy(on_fake, torch.zeros_like(on_fake))


class Critic(nn.Module):
    """A critic with instance norm (Arjovsky et al. 2017) or spectral norm (Miyato et al. 2018)."""

    def __init__(self, spectral: bool) -> None:
        super().__init__()
        wrap = nn.utils.parametrizations.spectral_norm if spectral else (lambda m: m)
        self.conv1 = wrap(nn.Conv2d(3, WIDTH, 3, 1, 1))
        self.conv2 = wrap(nn.Conv2d(WIDTH, WIDTH * 2, 4, 2, 1))
        self.norm = nn.Identity() if spectral else nn.InstanceNorm2d(WIDTH * 2, affine=True)
        self.fc = wrap(nn.Linear(WIDTH * 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv1(x), 0.1)
        x = F.leaky_relu(self.norm(self.conv2(x)), 0.1)
        return self.fc(torch.sum(x, dim=(2, 3)))


class WGAN(nn.Module):
    """The loss of a Wasserstein critic."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = Critic(spectral=False)

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        return -torch.mean(self.critic(real)) + torch.mean(self.critic(fake))


class Hinge(nn.Module):
    """The hinge loss of a discriminator with spectral norm (SAGAN, Zhang et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.disc = Critic(spectral=True)

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        real_loss = nn.ReLU()(1.0 - self.disc(real)).mean()
        return real_loss + nn.ReLU()(1.0 + self.disc(fake)).mean()


class VAE(nn.Module):
    """A variational autoencoder (Kingma and Welling 2014), as in torch's examples."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc21 = nn.Linear(32, LATENT)
        self.fc22 = nn.Linear(32, LATENT)
        self.fc3 = nn.Linear(LATENT, 32)
        self.fc4 = nn.Linear(32, 64)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x: Tensor) -> Tensor:
        mu, logvar = self.encode(x.view(-1, 64))
        recon_x = self.decode(self.reparameterize(mu, logvar))
        BCE = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
        KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return BCE + KLD


class ConvVAE(nn.Module):
    """A convolutional beta-VAE (Higgins et al. 2017)."""

    def __init__(self, beta: float = 4.0) -> None:
        super().__init__()
        self.beta = beta
        self.encoder = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, stride=2, padding=1),
            nn.BatchNorm2d(WIDTH),
            nn.LeakyReLU(),
            nn.Conv2d(WIDTH, WIDTH * 2, 3, stride=2, padding=1),
            nn.BatchNorm2d(WIDTH * 2),
            nn.LeakyReLU(),
            nn.Flatten(),
            nn.Linear(WIDTH * 2 * 16, 2 * LATENT),
        )
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, WIDTH * 2 * 16),
            nn.Unflatten(1, (WIDTH * 2, 4, 4)),
            nn.ConvTranspose2d(WIDTH * 2, WIDTH, 3, stride=2, padding=1, output_padding=1),
            nn.LeakyReLU(),
            nn.ConvTranspose2d(WIDTH, 3, 3, stride=2, padding=1, output_padding=1),
        )

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        mu, log_var = self.encoder(image).chunk(2, dim=1)
        posterior = torch.distributions.Normal(mu, (0.5 * log_var).exp())
        recons = self.decoder(posterior.rsample())
        prior = torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu))
        kld = torch.distributions.kl_divergence(posterior, prior).sum(dim=1).mean()
        return F.mse_loss(recons, image) + self.beta * kld, recons


class VectorQuantizer(nn.Module):
    """The codebook of VQ-VAE (van den Oord et al. 2017)."""

    def __init__(self, codes: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(codes, LATENT)
        self.embedding.weight.data.uniform_(-1 / codes, 1 / codes)
        self.commitment_cost = 0.25

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        flat = inputs.view(-1, LATENT)
        distances = (
            torch.sum(flat**2, dim=1, keepdim=True)
            + torch.sum(self.embedding.weight**2, dim=1)
            - 2 * torch.matmul(flat, self.embedding.weight.t())
        )
        indices = torch.argmin(distances, dim=1).unsqueeze(1)
        encodings = torch.zeros(indices.shape[0], self.embedding.num_embeddings)
        encodings.scatter_(1, indices, 1)
        quantized = torch.matmul(encodings, self.embedding.weight).view(inputs.shape)
        e_latent_loss = F.mse_loss(quantized.detach(), inputs)
        loss = F.mse_loss(quantized, inputs.detach()) + self.commitment_cost * e_latent_loss
        quantized = inputs + (quantized - inputs).detach()
        return loss, quantized.permute(0, 3, 1, 2).contiguous()


class VQVAE(nn.Module):
    """VQ-VAE with straight-through gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, WIDTH, 4, 2, 1), nn.ReLU(inplace=True), nn.Conv2d(WIDTH, LATENT, 1)
        )
        self.vq = VectorQuantizer()
        self.decoder = nn.Sequential(
            nn.Conv2d(LATENT, WIDTH, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loss, quantized = self.vq(self.encoder(x))
        x_recon = self.decoder(quantized)
        return F.mse_loss(x_recon, x) / 0.06 + loss, x_recon


class DenoisingAutoencoder(nn.Module):
    """An autoencoder of noisy inputs (Vincent et al. 2008)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, x: Tensor) -> Tensor:
        noisy = x + 0.3 * torch.randn(x.shape)
        return nn.MSELoss()(torch.sigmoid(self.decoder(self.encoder(noisy))), x)


image_pairs = normal((3, 16, 16), (3, 16, 16))
images = normal((3, 16, 16))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "dcgan generator": Net(GeneratorStep, normal((LATENT, 1, 1)), loss="own"),
        "dcgan discriminator": Net(DiscriminatorStep, image_pairs, loss="own"),
        "wgan critic": Net(WGAN, image_pairs, loss="own"),
        "hinge, spectral norm": Net(Hinge, image_pairs, loss="own"),
        "vae": Net(VAE, uniform((1, 8, 8)), loss="own"),
        "convolutional vae": Net(ConvVAE, images, loss="own"),
        "vq-vae": Net(VQVAE, images, loss="own"),
        "denoising autoencoder": Net(DenoisingAutoencoder, uniform((64,)), loss="own"),
    }
)
