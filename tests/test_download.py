"""The download and the cache of Fashion-MNIST, against a server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from policysearch.data import fashion_mnist
from policysearch.values import InputError


@pytest.fixture
def contents() -> dict[str, bytes]:
    """Small stand-ins for the four files."""
    return {name: name.encode() * 40 for name in fashion_mnist.SHA256}


@pytest.fixture
def folder(tmp_path: Path, contents: dict[str, bytes]) -> Path:
    """The stand-ins on disk, gzipped."""
    for name, data in contents.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    """The address on this machine at which `folder` is served over HTTP."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_a_download_is_checked_and_cached(
    tmp_path: Path, server: str, contents: dict[str, bytes]
) -> None:
    cache = tmp_path / "new" / "cache"
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    files = fashion_mnist.download(cache, server, hashes)
    assert {name: gzip.decompress(path.read_bytes()) for name, path in files.items()} == contents
    assert fashion_mnist.download(cache, "http://127.0.0.1:1", hashes) == files
    damaged = next(iter(files.values()))
    damaged.write_bytes(b"damaged")
    fashion_mnist.download(cache, server, hashes)
    assert gzip.decompress(damaged.read_bytes()) == contents[next(iter(files))]


def test_a_download_with_other_contents_is_not_kept(tmp_path: Path, server: str) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(InputError, match="other contents than published; expected SHA-256"):
        fashion_mnist.download(cache, server)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "{server}/nowhere", "nonsense"])
def test_a_download_that_fails_names_the_way_out(tmp_path: Path, server: str, url: str) -> None:
    with pytest.raises(InputError, match=r"cannot download .*a folder with the four IDX files$"):
        fashion_mnist.download(tmp_path / "cache", url.format(server=server))
    assert not (tmp_path / "cache").exists()


def test_installed_files_in_the_cache_are_used_only_whole(
    folder: Path, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", folder / "none")
    monkeypatch.setattr(fashion_mnist, "cache_folder", lambda: folder)
    assert fashion_mnist.installed_files() is None
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    monkeypatch.setattr(fashion_mnist, "SHA256", hashes)
    assert fashion_mnist.installed_files() == {name: folder / f"{name}.gz" for name in contents}
