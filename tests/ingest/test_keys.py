"""The key of a run is secret: never printed, only its owner's file holds it."""

import os
import pickle
import random

import pytest

from kvtrace import UsageError
from kvtrace.ingest.keys import Key, is_weak, load_key


def test_a_key_prints_as_nothing():
    key = Key(bytes(range(16)))
    assert repr(key) == str(key) == "Key(secret)" and "000102" not in f"{key!r}"


def test_keys_are_random_and_subkeys_differ_by_purpose():
    assert Key.random().subkey("blocks") != Key.random().subkey("blocks")
    key = Key(bytes(16))
    assert key.subkey("blocks") != key.subkey("sessions")
    assert pickle.loads(pickle.dumps(key)).subkey("blocks") == key.subkey("blocks")


def test_a_missing_key_file_is_made_for_its_owner_alone(tmp_path):
    first = load_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert load_key(tmp_path / "key").subkey("x") == first.subkey("x")


def test_a_key_file_that_others_can_read_is_refused(tmp_path):
    load_key(tmp_path / "key")
    os.chmod(tmp_path / "key", 0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        load_key(tmp_path / "key")


@pytest.mark.parametrize("content", ["", "00", "zz" * 16, "00" * 17, "\u00e9"])
def test_a_key_file_holds_32_digits(tmp_path, content):
    path = tmp_path / "key"
    path.write_text(content)
    os.chmod(path, 0o600)
    with pytest.raises(UsageError, match="key file"):
        load_key(path)


def test_a_key_file_that_cannot_be_is_one_clear_line(tmp_path):
    with pytest.raises(UsageError, match="cannot be created"):
        load_key(tmp_path / "no" / "key")
    with pytest.raises(UsageError, match="this is a folder"):
        load_key(tmp_path)
    with pytest.raises(UsageError, match="16 bytes"):
        Key(b"short")


def test_a_key_file_that_is_a_link_is_refused(tmp_path):
    load_key(tmp_path / "key")
    (tmp_path / "link").symlink_to("key")
    (tmp_path / "dangling").symlink_to("gone")
    for name in ("link", "dangling"):
        with pytest.raises(UsageError, match="this is a link, which is not followed"):
            load_key(tmp_path / name)
    assert not (tmp_path / "gone").exists()


def test_a_key_file_of_another_user_is_refused(tmp_path, monkeypatch):
    load_key(tmp_path / "key")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        load_key(tmp_path / "key")


def test_a_key_file_that_is_a_pipe_does_not_stop_a_run(tmp_path):
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(UsageError, match="this is a pipe or a device"):
        load_key(tmp_path / "key")


WEAK = {
    "zeros": "00" * 16,
    "one byte": "a7" * 16,
    "two bytes": "a70f" * 8,
    "counting digits": "0123456789abcdef" * 2,
    "counting bytes": bytes(range(16)).hex(),
    "steps": bytes(range(7, 7 + 16 * 11, 11)).hex(),
    "decimal digits": "90125647381092746510384756291038",
    "a password": b"correct horse ba".hex(),
    "a short password": b"letmein".ljust(16, b"\0").hex(),
}


@pytest.mark.parametrize("kind", WEAK)
def test_a_key_that_can_be_guessed_is_refused_and_not_shown(tmp_path, kind):
    path = tmp_path / "key"
    path.write_text(WEAK[kind] + "\n")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="can be guessed: it is not random. Name a file that does not exist") as error:
        load_key(path)
    assert WEAK[kind] not in str(error.value)


def test_random_keys_are_not_refused():
    draw = random.Random(3)
    assert not any(is_weak(draw.randbytes(16)) for _ in range(20_000))
