"""Words of two bytes or more in bytes, with a split."""


def words(data, in_words):
    return {word for word in bytes(byte if byte in in_words else 32 for byte in data).split(b" ") if len(word) > 1}
