"""Captures come back as they were written; whatever else lies in their place is refused in one line."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from leakscope.core.errors import InputError
from leakscope.store import captures
from leakscope.store.captures import Capture, check_model, list_captures, read_capture, read_captures, write_capture
from leakscope.store.recorder import Recorder, Recording, used_bytes
from leakscope.store.untrusted import MOST_HEADER, read_tensors

FUZZED = 2000  # of each part, 6,000 in all


def tree(seed: int, shift: float = 0.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "layer.weight": torch.randn(3, 4, generator=generator) + shift,
        "layer.bias": torch.randn(3, generator=generator).half(),
        "count": torch.tensor(7),
    }


def capture(number: int = 1, client: str = "4", **changed: Any) -> Capture:
    settings: dict[str, Any] = {
        "partition": 2,
        "examples": 20,
        "config": {"lr": 0.1, "epochs": 2, "name": "naïve", "x": True},
    }
    settings |= {"before": tree(0), "sent": tree(0, 0.5)} | changed
    return Capture(round=number, client=client, **settings)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_capture(tmp_path, capture())
    return tmp_path / "round-00001-client-4.json"


def same(one: Capture, other: Capture) -> None:
    for part in ("before", "sent"):
        a, b = getattr(one, part), getattr(other, part)
        assert set(a) == set(b)
        for name in a:
            assert a[name].dtype == b[name].dtype
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=0)
    for name in ("round", "client", "partition", "examples", "shares"):
        assert getattr(one, name) == getattr(other, name)
    assert dict(one.config) == dict(other.config)


def test_a_capture_comes_back_bit_for_bit(written: Path) -> None:
    same(read_capture(written), capture())


@pytest.mark.parametrize("changed", [{"partition": None, "examples": None, "config": {}}, {"shares": "gradient"}])
def test_what_was_not_told_stays_untold(tmp_path: Path, changed: dict[str, Any]) -> None:
    write_capture(tmp_path, capture(**changed))
    same(read_captures(tmp_path)[0], capture(**changed))


def test_clients_that_got_the_same_weights_share_a_file(tmp_path: Path) -> None:
    first = write_capture(tmp_path, capture(1, "a"))
    second = write_capture(tmp_path, capture(1, "b"))
    assert second < first
    assert len(list(tmp_path.glob("before-*"))) == 1
    assert [c.client for c in read_captures(tmp_path)] == ["a", "b"]
    assert used_bytes(tmp_path) == first + second


def test_a_writer_that_dies_leaves_no_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.replace, []

    def fails(source: Path, target: Path) -> None:
        calls.append(target)
        if str(target).endswith(".json"):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(InputError, match="disk full"):
        write_capture(tmp_path, capture())
    monkeypatch.undo()
    with pytest.raises(InputError, match="contains no capture"):
        list_captures(tmp_path)
    write_capture(tmp_path, capture())
    same(read_captures(tmp_path)[0], capture())


@pytest.mark.parametrize("broken", [".safetensors", ".json.part", "before"])
def test_a_writer_that_dies_at_any_file_leaves_whole_captures_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Of a second capture some file cannot be written: the first stays, nothing half written is left, and a retry works."""
    write_capture(tmp_path, capture(1, "a"))
    there, real = sorted(tmp_path.iterdir()), captures._write

    def fails(path: str, data: bytes) -> None:
        if ("before" in path) if broken == "before" else ("client-b" in path and path.endswith(broken)):
            raise OSError(28, "No space left on device")
        real(path, data)

    other = capture(2, "b", before=tree(5), sent=tree(6))
    monkeypatch.setattr(captures, "_write", fails)
    with pytest.raises(InputError, match="disk full"):
        write_capture(tmp_path, other)
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.part"))
    assert set(there) <= set(tmp_path.iterdir())
    same(*read_captures(tmp_path), capture(1, "a"))
    write_capture(tmp_path, other)
    same(read_captures(tmp_path)[1], other)


# -- refused, one by one


def rewrite(path: Path, **changed: object) -> None:
    told = json.loads(path.read_text()) | changed
    path.write_text(json.dumps(told))


def put(path: Path, part: str, data: bytes) -> None:
    """Put other bytes in the place of a file, with the hash that fits them."""
    told = json.loads(path.read_text())
    (path.parent / told[part]["file"]).write_bytes(data)
    told[part]["sha256"] = hashlib.sha256(data).hexdigest()
    path.write_text(json.dumps(told))


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch /tmp/leakscope-must-not-exist",)


def nan() -> bytes:
    return save({**tree(0), "layer.weight": torch.full((3, 4), float("nan"))})


def huge_header() -> bytes:
    return (MOST_HEADER + 1).to_bytes(8, "little") + b" " * 64


def other_shape() -> bytes:
    return save({**tree(0), "layer.weight": torch.zeros(4, 3)})


def other_name() -> bytes:
    return save({**tree(0), "other.weight": torch.zeros(4, 3)})


def lying_shape() -> bytes:
    data = save(tree(0))
    return data.replace(b'"shape":[3,4]', b'"shape":[9,9]')


def overflow() -> bytes:
    return _bytes({"x": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}, b"1234")


def negative() -> bytes:
    return _bytes({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}, b"1234")


def deep() -> bytes:
    head = b"[" * 100_000
    return len(head).to_bytes(8, "little") + head


def _bytes(header: object, numbers: bytes) -> bytes:
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + numbers


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pickle.dumps(Bomb()), "pickle"),
        (huge_header, "header claims"),
        (lambda: save(tree(0))[:-3], "outside the file"),
        (lambda: save(tree(0)) + b"more", "describes"),
        (lambda: save(tree(0))[:5], "has 5 bytes"),
        (nan, "NaN"),
        (other_shape, "before there was"),
        (other_name, "there was nothing"),
        (lying_shape, "needs 324 bytes"),
        (overflow, "needs"),
        (negative, "shape"),
        (deep, "JSON"),
        (lambda: b"", "has 0 bytes"),
    ],
)
def test_bad_tensors_are_refused_in_one_line(written: Path, make: Callable[[], bytes], said: str) -> None:
    put(written, "sent", make())
    with pytest.raises(InputError, match=said) as refused:
        read_capture(written)
    assert len(str(refused.value).splitlines()) == 1
    assert not Path("/tmp/leakscope-must-not-exist").exists()


def test_a_torch_save_file_is_called_a_pickle(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(3)}, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="pickle"):
        read_tensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/passwd",
        "a/../../b",
        "..",
        "",
        "a\x00b",
        "sub/file.safetensors",
        7,
        None,
        "x" * 300,
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(written: Path, name: object) -> None:
    rewrite(written, sent={"file": name, "sha256": "0" * 64})
    with pytest.raises(InputError, match=r"'sent' .*this directory"):
        read_capture(written)


def test_a_link_out_of_the_directory_is_refused(written: Path, tmp_path: Path) -> None:
    told = json.loads(written.read_text())["sent"]["file"]
    real = tmp_path / told
    elsewhere = tmp_path.parent / "elsewhere.safetensors"
    real.rename(elsewhere)
    real.symlink_to(elsewhere)
    with pytest.raises(InputError, match="link"):
        read_capture(written)


def test_a_pipe_is_refused_and_never_waited_for(written: Path, tmp_path: Path) -> None:
    real = tmp_path / json.loads(written.read_text())["sent"]["file"]
    real.unlink()
    os.mkfifo(real)
    with pytest.raises(InputError, match="no plain file"):
        read_capture(written)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"format": "other"}, "is no capture"),
        ({"round": -1}, "'round'"),
        ({"round": True}, "'round'"),
        ({"examples": 1.5}, "'examples'"),
        ({"examples": 10**30}, "'examples'"),
        ({"client": "../x"}, "'client'"),
        ({"shares": "secrets"}, "'shares'"),
        ({"config": {"x": [1]}}, "'config'"),
        ({"config": []}, "'config'"),
        ({"parameters": {}}, "'parameters'"),
        ({"extra": 1}, "'extra'"),
        ({"sent": "file"}, "'sent'"),
        ({"sent": {"file": "x.safetensors", "sha256": "zz"}}, "SHA-256"),
        ({"client": "5"}, "renamed"),
    ],
)
def test_a_bad_field_is_named(written: Path, changed: dict[str, object], said: str) -> None:
    rewrite(written, **changed)
    with pytest.raises(InputError, match=said):
        read_capture(written)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[" * 100_000, "\ud800", "9" * 10_000]
)
def test_text_that_is_no_object_is_refused(written: Path, text: str) -> None:
    written.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError):
        read_capture(written)


def test_bytes_that_changed_are_noticed(written: Path) -> None:
    path = written.parent / json.loads(written.read_text())["sent"]["file"]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match="was written"):
        read_capture(written)


def test_a_capture_of_another_model_is_named() -> None:
    shapes = {name: tuple(value.shape) for name, value in tree(0).items()}
    needed = frozenset(shapes)
    check_model(capture(), shapes, "Net", needed=needed)
    with pytest.raises(InputError, match="another model"):
        check_model(capture(), {"layer.weight": (3, 4)}, "Net", needed=needed)
    with pytest.raises(InputError, match=r"another model.*\(3, 4\)"):
        check_model(capture(), shapes | {"layer.weight": (4, 3)}, "Net", needed=needed)
    with pytest.raises(InputError, match="lacks 'head'"):
        check_model(capture(), shapes | {"head": (1,)}, "Net", needed=needed | {"head"})


# -- fuzz


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Return the bytes with a few changes: flips, cuts, copies, numbers and texts that have broken readers before."""
    made = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        kind, place = draw.randrange(6), draw.randrange(len(made) or 1)
        if kind == 0 and made:
            made[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            made = made[:place]
        elif kind == 2:
            made[place:place] = draw.randbytes(draw.randint(1, 9))
        elif kind == 3 and made:
            end = place + draw.randint(1, 20)
            made[place:end] = b""
        elif kind == 4:
            made[place : place + 1] = draw.choice(
                [b"-1", b"1e999", b"null", b"[]", b"{}", b'"', b"\x00", b"99999999999999999999"]
            )
        else:
            made[:8] = draw.choice([0, 1, 2**63, 2**64 - 1, len(data), MOST_HEADER]).to_bytes(8, "little")
    return bytes(made)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["text", *(pytest.param(t, marks=pytest.mark.slow) for t in ("sent", "before"))])
def test_thousands_of_damaged_captures_are_refused_or_read_right(tmp_path: Path, target: str) -> None:
    write_capture(tmp_path, capture())
    path = tmp_path / "round-00001-client-4.json"
    text, draw, lines, read = path.read_bytes(), random.Random(target), [], 0
    told = json.loads(text)
    file = path if target == "text" else tmp_path / told[target]["file"]
    whole = file.read_bytes()
    for number in range(FUZZED):
        data = mutate(whole, draw)
        file.write_bytes(data)
        if target != "text" and number % 2:  # a forger who also writes the hash that fits
            told[target]["sha256"] = hashlib.sha256(data).hexdigest()
            path.write_text(json.dumps(told))
        elif target != "text":
            path.write_bytes(text)
        try:
            made = read_capture(path)
            assert all(bool(t.isfinite().all()) for t in (*made.before.values(), *made.sent.values()))
            assert {n: v.shape for n, v in made.sent.items()} == {n: made.before[n].shape for n in made.sent}
            read += 1
        except InputError as error:
            lines.append(len(str(error).splitlines()))
    assert set(lines) == {1}
    assert len(lines) + read == FUZZED
    assert len(lines) > FUZZED // 2


# -- recording


@given(every=st.integers(1, 7), clients=st.integers(1, 5), seed=st.integers(0, 99), names=st.permutations("abcdefgh"))
def test_the_choice_does_not_depend_on_the_order_of_answers(
    every: int, clients: int, seed: int, names: list[str]
) -> None:
    recording = Recording(directory=Path("x"), every=every, clients=clients, seed=seed)
    chosen = recording.choose(3, names)
    assert chosen == recording.choose(3, sorted(names))
    assert len(chosen) == clients
    assert set(chosen) <= set(names)
    assert [recording.wants(n) for n in range(1, 15)] == [(n - 1) % every == 0 for n in range(1, 15)]


def test_the_disk_is_never_filled_beyond_its_share(tmp_path: Path) -> None:
    most = 200_000
    recorder = Recorder(Recording(directory=tmp_path, most_bytes=most))
    with pytest.warns(UserWarning, match="most_bytes"):
        kept = [recorder.record(capture(n, sent=tree(n), before=tree(n + 99))) for n in range(400)]
    assert 0 < recorder.written == sum(kept) < 400
    assert used_bytes(tmp_path) <= most
    assert recorder.used == used_bytes(tmp_path)
    assert len(read_captures(tmp_path)) == recorder.written
    again = Recorder(Recording(directory=tmp_path, most_bytes=most))
    assert again.used == recorder.used


@pytest.mark.parametrize("bad", [{"sent": {"x": torch.tensor([float("nan")])}}, {"sent": {}}, {"client": "../.."}])
def test_what_cannot_be_recorded_is_counted_and_never_raised(tmp_path: Path, bad: dict[str, Any]) -> None:
    recorder = Recorder(Recording(directory=tmp_path))
    with pytest.warns(UserWarning, match="training continues"):
        assert not recorder.record(capture(**{"before": {"x": torch.zeros(1)}} | bad))
    assert recorder.record(capture())
    assert recorder.left_out.total() == 1
    assert len(read_captures(tmp_path)) == 1


def test_a_directory_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recorder = Recorder(Recording(directory=tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="training continues"):
        assert not recorder.record(capture())


@pytest.mark.parametrize("settings", [{"every": 0}, {"clients": 0}, {"most_bytes": 0}])
def test_settings_that_cannot_work_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InputError):
        Recording(directory=Path("x"), **settings)
