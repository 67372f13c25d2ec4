"""A hub for tests: serves the files of a directory by the protocols of the Hugging Face hub, Ollama's registry,
ModelScope and a plain web server, with faults on request. Standard library only.

Usage: hub_server.py DIRECTORY

Prints the ports of the hub and of its content network, `HUB CDN`, and ends when its standard input is closed.

DIRECTORY has hf/USER/REPO/…, ms/USER/REPO/…, ollama/NAMESPACE/NAME/TAG.gguf and web/…. A repository may have a file
`.repo.json` with the keys gated, private, disabled, token, moved_to, plain_listing, page, extra_files and sizes.

POST /_faults takes a list of faults: {"server": "hub" or "cdn", "match": regex of the path, "times": number or null,
"kind": …, and the fields of the kind}. GET /_log returns the requests, and empties the log. GET
/_idle, of either server, answers when it serves no other connection.
"""

import base64
import hashlib
import json
import os
import re
import ssl
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = sys.argv[1]
LOCK = threading.Lock()
LOG, FAULTS, SIGNATURES = [], [], set()
COUNTER = [0]
LFS = (".gguf", ".safetensors", ".bin")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Repo:
    """A repository in a directory."""

    def __init__(self, path):
        self.path = path
        config = os.path.join(path, ".repo.json")
        self.config = json.loads(read(config)) if os.path.exists(config) else {}
        self.files = {}
        for directory, _, names in os.walk(path):
            for name in names:
                full = os.path.join(directory, name)
                if name != ".repo.json":
                    self.files[os.path.relpath(full, path).replace(os.sep, "/")] = full
        text = "".join(f"{name}:{sha256(read(full))}\n" for name, full in sorted(self.files.items()))
        self.commit = hashlib.sha1(text.encode()).hexdigest()

    def etag(self, name):
        data = read(self.files[name])
        return sha256(data) if name.endswith(LFS) else git_sha1(data)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.handle_request()

    def do_GET(self):
        self.handle_request()

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length) or b"null")
        if self.path == "/_faults":
            with LOCK:
                FAULTS[:] = body
            return self.answer(200, b"{}")
        self.answer(404, b"")

    def handle_request(self):
        self.url = urllib.parse.urlsplit(self.path)
        self.query = urllib.parse.parse_qs(self.url.query)
        if self.path == "/_log":
            with LOCK:
                body = json.dumps(LOG).encode()
                LOG.clear()
            return self.answer(200, body)
        if self.path == "/_idle":
            while self.server.active > 1:
                time.sleep(0.001)
            self.close_connection = True
            return self.answer(200, b"")
        name = self.server.name
        with LOCK:
            LOG.append({
                "server": name, "method": self.command, "path": self.path,
                "range": self.headers.get("Range"), "authorization": self.headers.get("Authorization"),
                "if_range": self.headers.get("If-Range"),
            })
            self.fault = {}
            for fault in FAULTS:
                if fault.get("server", name) == name and re.search(fault["match"], self.path) and fault.get("times") != 0:
                    if fault.get("times"):
                        fault["times"] -= 1
                    self.fault = fault
                    break
        kind = self.fault.get("kind")
        if kind == "status":
            body = self.fault.get("body", "").encode()
            return self.answer(self.fault["status"], body, **self.fault.get("headers", {}))
        if kind == "redirect":
            return self.answer(302, b"", Location=self.fault["location"])
        if kind == "drop":
            self.close_connection = True
            return None
        if kind == "stall":
            time.sleep(self.fault["seconds"])
        path = urllib.parse.unquote(self.url.path)
        try:
            if name == "cdn":
                return self.content(path)
            parts = path.strip("/").split("/")
            if parts[0] == "api" and parts[1] == "models":
                return self.hub_api(parts[2:])
            if parts[:3] == ["api", "v1", "models"]:
                return self.modelscope(parts[3:])
            if parts[0] == "v2":
                return self.ollama(parts[1:])
            if parts[0] == "web":
                return self.web(parts[1:])
            if len(parts) > 3 and parts[2] == "resolve":
                return self.resolve(parts)
            return self.answer(404, b"")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
            return None

    def token(self):
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def repo(self, user, name, files=False):
        """The repository, or None after an error answer."""
        path = os.path.join(ROOT, "hf", user, name)
        if self.token() == "hf_bad":
            self.error(401, "", "Invalid credentials in Authorization header")
            return None
        if not os.path.isdir(path):
            self.error(404 if self.token() else 401, "RepoNotFound", "Repository not found")
            return None
        repo = Repo(path)
        config = repo.config
        if config.get("private") and self.token() != config.get("token"):
            self.error(404 if self.token() else 401, "RepoNotFound", "Repository not found")
            return None
        if config.get("disabled"):
            self.error(403, "", "Access to this resource is disabled.")
            return None
        if files and config.get("gated") and self.token() != config.get("token"):
            self.error(403 if self.token() else 401, "GatedRepo", "Access to this repository is restricted")
            return None
        return repo

    def hub_api(self, parts):
        if not parts:
            return self.search()
        if len(parts) == 2:
            parts = [*parts, "revision", "main"]
        user, name, what, revision = parts[0], parts[1], parts[2], parts[3]
        repo = self.repo(user, name)
        if repo is None:
            return None
        if "moved_to" in repo.config:
            return self.answer(307, b"", Location=self.path.replace(f"{user}/{name}", repo.config["moved_to"]))
        if revision not in ("main", repo.commit):
            return self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        names = [*sorted(repo.files), *repo.config.get("extra_files", [])]
        sizes = {n: len(read(repo.files[n])) if n in repo.files else 4 for n in names} | repo.config.get("sizes", {})
        etags = {n: repo.etag(n) if n in repo.files else git_sha1(b"evil") for n in names}
        if what == "revision":
            siblings = []
            for n in names:
                sibling = {"rfilename": n}
                if "blobs" in self.query and not repo.config.get("plain_listing"):
                    sibling |= {"size": sizes[n], "blobId": etags[n] if not n.endswith(LFS) else "0" * 40}
                    if n.endswith(LFS):
                        sibling["lfs"] = {"sha256": etags[n], "size": sizes[n], "pointerSize": 130}
                siblings.append(sibling)
            answer = {
                "id": f"{user}/{name}", "modelId": f"{user}/{name}", "sha": repo.commit, "siblings": siblings,
                "gated": bool(repo.config.get("gated")), "private": bool(repo.config.get("private")), "tags": [],
                "downloads": 1, "likes": 0, "disabled": False,
            }
            return self.json(answer)
        entries = []
        for n in names:
            entry = {"type": "file", "oid": etags[n] if not n.endswith(LFS) else "0" * 40, "size": sizes[n], "path": n}
            if n.endswith(LFS):
                entry["lfs"] = {"oid": etags[n], "size": sizes[n], "pointerSize": 130}
            entries.append(entry)
        page = repo.config.get("page", 1000)
        start = int(self.query.get("cursor", ["0"])[0])
        headers = {}
        if start + page < len(entries):
            next_page = f"http://{self.headers['Host']}{self.url.path}?recursive=true&cursor={start + page}"
            headers["Link"] = f'<{next_page}>; rel="next"'
        return self.json(entries[start:start + page], **headers)

    def search(self):
        words = self.query.get("search", [""])[0].lower()
        hits = []
        base = os.path.join(ROOT, "hf")
        for user in sorted(os.listdir(base)):
            for name in sorted(os.listdir(os.path.join(base, user))):
                repo = Repo(os.path.join(base, user, name))
                if words in f"{user}/{name}".lower() and any(n.endswith(".gguf") for n in repo.files):
                    hits.append({
                        "id": f"{user}/{name}", "downloads": 100, "likes": 3,
                        "gated": "auto" if repo.config.get("gated") else False, "tags": ["gguf", "license:mit"],
                    })
        self.json(hits[:int(self.query.get("limit", ["10"])[0])])

    def resolve(self, parts):
        user, name, revision, file = parts[0], parts[1], parts[3], "/".join(parts[4:])
        repo = self.repo(user, name, files=True)
        if repo is None:
            return None
        headers = {"X-Repo-Commit": repo.commit}
        if revision not in ("main", repo.commit):
            return self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}", **headers)
        if file not in repo.files:
            return self.error(404, "EntryNotFound", "Entry not found", **headers)
        data = read(repo.files[file])
        etag = repo.etag(file)
        if not file.endswith(LFS):
            return self.send_file(data, ETag=f'"{etag}"', **headers)
        headers |= {"X-Linked-ETag": f'"{etag}"', "X-Linked-Size": str(len(data)), "X-Xet-Hash": sha256(data)}
        self.answer(302, b"", Location=self.sign(repo.files[file]), **headers)

    def sign(self, path):
        with LOCK:
            COUNTER[0] += 1
            signature = sha256(str(COUNTER[0]).encode())[:16]
            SIGNATURES.add(signature)
        path = base64.urlsafe_b64encode(path.encode()).decode()
        return f"http://localhost:{self.server.cdn_port}/blob/{path}?Signature={signature}"

    def content(self, path):
        """The content network: signed addresses, no tokens."""
        if self.headers.get("Authorization"):
            return self.answer(400, b"a token was sent to the content network")
        signature = self.query.get("Signature", [""])[0]
        if self.fault.get("kind") == "expire":
            with LOCK:
                SIGNATURES.discard(signature)
        if signature not in SIGNATURES:
            return self.answer(403, b"<Error>Request has expired</Error>")
        data = read(base64.urlsafe_b64decode(path.rsplit("/", 1)[1]).decode())
        return self.send_file(data, ETag=f'"cdn-{sha256(data)[:8]}"')

    def modelscope(self, parts):
        path = os.path.join(ROOT, "ms", parts[0], parts[1])
        if not os.path.isdir(path):
            return self.json({"Code": 10010205001, "Message": "not found", "Success": False}, status=404)
        repo = Repo(path)
        if parts[2:] == ["repo", "files"]:
            files = [{"Path": n, "Size": len(read(p)), "Sha256": sha256(read(p)), "Type": "blob"} for n, p in sorted(repo.files.items())]
            files += [{"Path": n, "Size": 4, "Sha256": sha256(b"evil"), "Type": "blob"} for n in repo.config.get("extra_files", [])]
            files.append({"Path": "sub", "Type": "tree", "Size": 0, "Sha256": ""})
            return self.json({"Code": 200, "Data": {"Files": files}, "Success": True})
        return self.send_file(read(repo.files[self.query["FilePath"][0]]))

    def ollama(self, parts):
        namespace, name, what, item = parts[0], parts[1], parts[2], parts[3]
        directory = os.path.join(ROOT, "ollama", namespace, name)
        if what == "manifests":
            path = os.path.join(directory, item + ".gguf")
            manifest = os.path.join(directory, item + ".json")
            if os.path.exists(manifest):
                return self.answer(200, read(manifest))
            if not os.path.exists(path):
                error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
                return self.json(error, status=404)
            data = read(path)
            layers = [
                {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{sha256(data)}", "size": len(data)},
                {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{sha256(b't')}", "size": 1},
                {"mediaType": "application/vnd.ollama.image.params", "digest": f"sha256:{sha256(b'{}')}", "size": 2},
            ]
            return self.json({"schemaVersion": 2, "config": {}, "layers": layers})
        for file in os.listdir(directory):
            path = os.path.join(directory, file)
            if item == f"sha256:{sha256(read(path))}":
                return self.answer(307, b"", Location=self.sign(path))
        return self.answer(404, b"")

    def web(self, parts):
        path = os.path.join(ROOT, "web", *parts)
        if not os.path.isfile(path):
            return self.answer(404, b"<html>not found</html>")
        data = read(path)
        return self.send_file(data, ETag=f'"{sha256(data)[:12]}"')

    def send_file(self, data, **headers):
        """A file, or a range of it, with the fault of this request."""
        kind = self.fault.get("kind")
        if kind == "corrupt":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if kind == "longer":
            data += b"x" * self.fault.get("extra", 100)
        total, start, end, status = len(data), 0, len(data), 200
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        condition = self.headers.get("If-Range")
        if match and not self.fault.get("no_ranges") and (condition is None or condition == headers.get("ETag")):
            start, end = int(match[1]), min(int(match[2]) + 1, total)
            if start >= total:
                return self.answer(416, b"", **{"Content-Range": f"bytes */{total}"})
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{total}"
        body = data[start:end]
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Accept-Ranges", "bytes")
        if kind == "endless":
            # More than the range, without a length.
            body += b"x" * 200000
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if kind == "cut":
            self.wfile.write(body[:self.fault["after"]])
            self.close_connection = True
            self.connection.shutdown(2)
        elif kind == "hang":
            self.wfile.write(body[:self.fault["after"]])
            time.sleep(self.fault["seconds"])
            self.close_connection = True
        elif kind == "slow":
            for at in range(0, len(body), self.fault["step"]):
                self.wfile.write(body[at:at + self.fault["step"]])
                time.sleep(self.fault["seconds"])
        else:
            self.wfile.write(body)

    def error(self, status, code, message, **headers):
        headers |= {"X-Error-Message": message}
        if code:
            headers["X-Error-Code"] = code
        self.answer(status, json.dumps({"error": message}).encode(), **headers)

    def json(self, value, status=200, **headers):
        self.answer(status, json.dumps(value).encode(), **{"Content-Type": "application/json"}, **headers)

    def answer(self, status, body, **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    # Connections that are served now.
    active = 0

    def process_request(self, *connection):
        with LOCK:
            self.active += 1
        super().process_request(*connection)

    def process_request_thread(self, *connection):
        try:
            super().process_request_thread(*connection)
        finally:
            with LOCK:
                self.active -= 1

    def handle_error(self, *_):
        pass


def main():
    servers = [Server(("127.0.0.1", 0), Handler) for _ in range(2)]
    for server, name in zip(servers, ["hub", "cdn"]):
        server.name = name
        server.cdn_port = servers[1].server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
    ports = [str(server.server_address[1]) for server in servers]
    if len(sys.argv) > 3:
        # The hub over TLS as well: CERTIFICATE KEY.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2], sys.argv[3])
        server = Server(("127.0.0.1", 0), Handler)
        server.name, server.cdn_port = "hub", servers[1].server_address[1]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ports.append(str(server.server_address[1]))
    print(*ports, flush=True)
    sys.stdin.read()


main()
