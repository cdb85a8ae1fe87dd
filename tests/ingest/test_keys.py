"""The key of a run is secret: never printed, only its owner's file holds it."""

import os
import pickle

import pytest

from kvtrace import UsageError
from kvtrace.ingest.keys import Key, load_key


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
    with pytest.raises(UsageError, match="not a regular file"):
        load_key(tmp_path)
    with pytest.raises(UsageError, match="16 bytes"):
        Key(b"short")
