"""A stand-in for a model: OpenAI's chat completions over HTTP, streamed or not, with counts of one tokenizer.

It counts the tokens of the messages' contents, without a chat template, and answers with as many words as max_tokens
asks for. Run in an environment that has `tokenizers`, as TOKENIZER_JSON LOG: it prints its port, and appends to LOG a
line of JSON for each request: the prompt's tokens, the tokens asked for, when it came, and the text.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import tokenizers

TOKENIZER = tokenizers.Tokenizer.from_file(sys.argv[1])
LOG, LOCK = open(sys.argv[2], "a"), threading.Lock()  # noqa: SIM115 (open until the process ends)
WORD = " sit"  # one token of every tokenizer that is tried


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._send({"object": "list", "data": [{"id": "stand-in", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = [message["content"] for message in body["messages"]]
        prompt = sum(len(TOKENIZER.encode(text, add_special_tokens=False).ids) for text in texts)
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or 1
        with LOCK:
            LOG.write(json.dumps({"prompt": prompt, "asked": asked, "at": time.time(), "text": "".join(texts)}) + "\n")
            LOG.flush()
        usage = {"prompt_tokens": prompt, "completion_tokens": asked, "total_tokens": prompt + asked}
        if body.get("stream"):
            self._stream(asked, usage)
        else:
            message = {"role": "assistant", "content": WORD * asked}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            self._send({"object": "chat.completion", "model": "stand-in", "choices": [choice], "usage": usage})

    def _stream(self, asked, usage):
        """Two pieces of the answer, so that there is a first and a next token, then the counts."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for words, finish in ((1, None), (asked - 1, "length")):
            choice = {"index": 0, "delta": {"role": "assistant", "content": WORD * words}, "finish_reason": finish}
            self._event({"choices": [choice]})
            time.sleep(0.002)
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, values):
        event = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "stand-in", **values}
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def _send(self, values):
        data = json.dumps(values).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # 5 by default: a busy machine then resets the connections of a burst


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Model)
    print(server.server_address[1], flush=True)
    server.serve_forever()
