"""Archives as folders of traces; and those that are refused, with nothing of them stored."""

import gzip
import io
import json
import stat
import tarfile
import zipfile

import pytest
import zstandard
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegap.flows.cli import cli
from tracegap.ingest import archives, files, pipeline
from tracegap.ingest.errors import Refused
from tracegap.ingest.store import open_store

MANIFEST = b'job = "j"\nrun = "r"\n'


def trace(rank=0, note="", world_size=4):
    """A tiny Kineto trace with one kernel; `note` makes the content differ."""
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0,
              "args": {"device": 0, "stream": 7, "correlation": 1}}  # fmt: skip
    return json.dumps(
        {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
            "note": note,
            "traceEvents": [kernel],
        }
    ).encode()


def tar_of(members):
    """A tar archive of (TarInfo or name, content) in that order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zip_of(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


FORMS = {
    "a.tar": tar_of,
    "a.tar.gz": lambda members: gzip.compress(tar_of(members)),
    "a.tgz": lambda members: gzip.compress(tar_of(members)),
    "a.tar.zst": lambda members: zstandard.ZstdCompressor().compress(tar_of(members)),
    "a.zip": zip_of,
}


@pytest.fixture
def con(tmp_path):
    with open_store(tmp_path / "s.duckdb") as connection:
        yield connection


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def stored(con):
    return con.execute("select path, run_id, rank from traces order by path").fetchall()


@pytest.mark.parametrize("name", FORMS)
def test_an_archive_is_a_folder_with_its_manifest(con, tmp_path, name):
    members = [
        ("./run/rank0.json", trace(0)),
        ("run/rank1.json.gz", gzip.compress(trace(1))),
        ("run/manifest.toml", MANIFEST),  # after the traces that it describes
        ("run/notes.txt", b"no trace"),
        ("run/.hidden/x.json", b"{"),
    ]
    path = put(tmp_path, f"in/{name}", FORMS[name](members))
    results = pipeline.ingest_paths(con, [path.parent])
    assert [r.status for r in results] == ["ok", "ok"]
    assert stored(con) == [(f"{path}!/run/rank0.json", "j/r", 0), (f"{path}!/run/rank1.json.gz", "j/r", 1)]
    sizes = con.execute("select size_bytes from traces order by path").fetchall()
    assert sizes == [(len(trace(0)),), (len(gzip.compress(trace(1))),)]
    again = pipeline.ingest_paths(con, [str(path)])
    assert [r.status for r in again] == ["already", "already"]


def test_content_decides_not_the_name_and_a_member_equals_the_file(con, tmp_path):
    pipeline.ingest_paths(con, [put(tmp_path, "rank0.json", trace(0))])
    results = pipeline.ingest_paths(con, [put(tmp_path, "delivery", tar_of([("rank0.json", trace(0))]))])
    assert [(r.status, r.path) for r in results] == [("already", f"{tmp_path}/delivery!/rank0.json")]


def test_archives_in_archives_keep_their_place(con, tmp_path):
    inner = zip_of([("rank1.json", trace(1)), ("manifest.toml", MANIFEST)])
    path = put(tmp_path, "a.tar.gz", gzip.compress(tar_of([("deep/b.zip", inner), ("rank0.json", trace(0))])))
    pipeline.ingest_paths(con, [path])
    assert stored(con) == [(f"{path}!/deep/b.zip!/rank1.json", "j/r", 1), (f"{path}!/rank0.json", "a", 0)]


def test_ranks_in_an_archive_are_one_run_and_it_is_called_like_the_archive(con, tmp_path):
    pipeline.ingest_paths(
        con, [put(tmp_path, "mon.tar.gz", gzip.compress(tar_of([(f"{r}.json", trace(r)) for r in (0, 1)])))]
    )
    assert {run for _, run, _ in stored(con)} == {"mon"}


def test_a_report_beside_its_export_is_left_in_archives_too(tmp_path):
    path = put(tmp_path, "a.zip", zip_of([("r.nsys-rep", b"x"), ("r.sqlite", b"y"), ("alone.nsys-rep", b"z")]))
    assert [m.shown for m in archives.unpacked(path, "a.zip")] == ["a.zip!/r.sqlite", "a.zip!/alone.nsys-rep"]


@settings(max_examples=30)
@given(
    names=st.lists(st.lists(st.text("ab .-é", min_size=1, max_size=8), min_size=1, max_size=3), min_size=1, max_size=5),
    form=st.sampled_from(sorted(FORMS)),
)
def test_what_comes_out_is_what_went_in_and_nothing_is_left(tmp_path_factory, names, form):
    folder = tmp_path_factory.mktemp("a")
    members = {
        "/".join((f"{i}", *(f"x{p}x" for p in parts))) + ".json": bytes([i]) * 3 for i, parts in enumerate(names)
    }
    path = put(folder, form, FORMS[form](list(members.items())))
    seen = []
    for member in archives.unpacked(path, "A"):
        assert not any(s.exists() for s in seen), "one at a time"
        assert member.error is None
        assert member.path.read_bytes() == members.pop(member.shown.removeprefix("A!/"))
        seen.append(member.path)
    assert not members
    assert not any(s.parent.exists() for s in seen)


def test_damage_loses_what_is_damaged_only(con, tmp_path):
    whole = gzip.compress(
        tar_of([("rank0.json", trace(0)), ("rank1.json", trace(1, note="x" * 100_000))]), compresslevel=0
    )
    cut = pipeline.ingest_paths(con, [put(tmp_path, "cut.tar.gz", whole[:60_000])])
    assert [(r.status, r.path) for r in cut] == [
        ("ok", f"{tmp_path}/cut.tar.gz!/rank0.json"),
        ("failed", f"{tmp_path}/cut.tar.gz!/rank1.json"),
    ]
    assert "ends early" in cut[1].error
    members = [(f"rank{r}.json", trace(r, note="zip")) for r in (0, 1, 2)]
    flipped = bytearray(zip_of(members))
    flipped[flipped.index(b"rank1.json") + 40] ^= 0xFF
    got = pipeline.ingest_paths(con, [put(tmp_path, "flipped.zip", bytes(flipped))])
    assert [r.status for r in got] == ["ok", "failed", "ok"]
    assert pipeline.ingest_paths(con, [put(tmp_path, "cut.zip", zip_of(members)[:-30])])[0].status == "failed"


@settings(max_examples=100)
@given(
    form=st.sampled_from(sorted(FORMS)),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
    cut=st.floats(0.1, 1),
)
def test_damage_of_any_kind_ends_in_a_named_error(tmp_path_factory, form, changes, cut):
    whole = bytearray(FORMS[form]([(f"run/rank{r}.json", bytes(range(256)) * 4) for r in range(3)]))
    for at, value in changes:
        whole[int(at * len(whole))] = value
    path = put(tmp_path_factory.mktemp("d"), form, bytes(whole[: int(cut * len(whole))]))
    try:
        if archives.is_archive(path):
            for member in archives.unpacked(path, "A"):
                assert member.error is None or member.error.path.startswith("A"), member.error
                assert member.error is not None or member.path.stat().st_size >= 0
    except Refused as e:
        assert e.path.startswith("A")  # noqa: PT017


def test_a_zip_that_lies_about_its_sizes_gives_no_more_than_it_says(tmp_path):
    packed = bytearray(zip_of([("rank0.json", b" " * 1_000_000), ("rank1.json", trace(1))]))
    at = packed.index(b"PK\x01\x02")
    packed[at + 24 : at + 28] = (1000).to_bytes(4, "little")
    got = list(archives.unpacked(put(tmp_path, "a.zip", bytes(packed)), "A"))
    assert [(m.shown, m.error is None) for m in got] == [("A!/rank0.json", False), ("A!/rank1.json", True)]


# -- refused ---------------------------------------------------------------------------------------------------------


def link(kind, target):
    info = tarfile.TarInfo("link.json")
    info.type, info.linkname = kind, target
    return info


def special(kind):
    info = tarfile.TarInfo("x.json")
    info.type = kind
    return info


def zip_link():
    info = zipfile.ZipInfo("link.json")
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info


GOOD = ("rank0.json", trace(0))
OUTSIDE = {
    "tar, up": tar_of([GOOD, ("../x.json", b"")]),
    "tar, up inside": tar_of([GOOD, ("a/../../x.json", b"")]),
    "tar, absolute": tar_of([GOOD, ("/etc/x.json", b"")]),
    "tar, Windows": tar_of([GOOD, ("C:\\x.json", b"")]),
    "tar, no trace": tar_of([GOOD, ("../../.ssh/authorized_keys", b"")]),
    "tar, symlink": tar_of([GOOD, (link(tarfile.SYMTYPE, "/etc/passwd"), b"")]),
    "tar, hard link": tar_of([GOOD, (link(tarfile.LNKTYPE, "/etc/passwd"), b"")]),
    "tar, device": tar_of([GOOD, (special(tarfile.CHRTYPE), b"")]),
    "tar, pipe": tar_of([GOOD, (special(tarfile.FIFOTYPE), b"")]),
    "tar.gz, nested": gzip.compress(tar_of([GOOD, ("b.zip", zip_of([("../x.json", b"")]))])),
    "zip, up": zip_of([GOOD, ("../x.json", b"")]),
    "zip, Windows up": zip_of([GOOD, ("a\\..\\..\\x.json", b"")]),
    "zip, absolute": zip_of([GOOD, ("/x.json", b"")]),
    "zip, symlink": zip_of([GOOD, (zip_link(), "/etc/passwd")]),
}


def refused(store, path, code):
    """Ingests by the command; checks status 3, one line, nothing stored; that line."""
    got = CliRunner().invoke(cli, ["ingest", "--store", str(store), "--json", str(path)])
    assert got.exit_code == 3, got.output
    (said,) = json.loads(got.stdout)["traces"]
    assert (said["status"], [d["code"] for d in said["diagnostics"]]) == ("failed", [code])
    (line,) = got.stderr.splitlines()
    assert line.startswith(f"tracegap: {path}")
    with open_store(store, read_only=True) as con:
        for table in ("traces", "ops", "runs", "host_events", "steps"):
            assert con.execute(f"select count(*) from {table}").fetchall() == [(0,)], table
    return line


@pytest.mark.parametrize("case", OUTSIDE)
def test_members_that_point_outside_refuse_the_whole_archive(tmp_path, case):
    before = set(tmp_path.parent.rglob("x.json"))
    refused(tmp_path / "s.duckdb", put(tmp_path, "in/a.archive", OUTSIDE[case]), "unsafe")
    assert set(tmp_path.parent.rglob("x.json")) == before


def test_an_encrypted_zip_is_refused(tmp_path):
    plain = bytearray(zip_of([GOOD]))
    plain[6] |= 1  # the flag in the local header
    plain[plain.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
    assert "encrypted" in refused(tmp_path / "s.duckdb", put(tmp_path, "a.zip", bytes(plain)), "encrypted")


def test_too_many_members_are_refused(tmp_path):
    header = tar_of([("x.txt", b"")])[:512]
    packed = gzip.compress(tar_of([GOOD])[:1024] + header * (archives.MAX_MEMBERS + 1), compresslevel=1)
    assert "20,000" in refused(tmp_path / "s.duckdb", put(tmp_path, "a.tar.gz", packed), "members")


def test_archives_nested_without_an_end_are_refused(tmp_path):
    inner = zip_of([GOOD])
    for _ in range(archives.MAX_DEPTH):
        inner = zip_of([("a.zip", inner)])
    refused(tmp_path / "s.duckdb", put(tmp_path, "a.zip", inner), "nested")


def repeated(start, block, times, pack):
    """Compressed: `start` and many blocks, made without having them in memory."""
    out = io.BytesIO()
    with pack(out) as stream:
        stream.write(start)
        for _ in range(times):
            stream.write(block)
    return out.getvalue()


def gzip_to(out):
    return gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1)


def zstd_to(out):
    return zstandard.ZstdCompressor(level=1).stream_writer(out, closefd=False)


HEAD = b'{"schemaVersion": 1, "traceEvents": ['
BLANKS = b" " * (1 << 20)
OVER = (files.HARMLESS_BYTES >> 20) + 8
BIG = tarfile.TarInfo("big.json")
BIG.size = len(HEAD) + len(BLANKS) * OVER


@pytest.fixture(scope="module")
def bomb():
    """A gzip file of 1 MB that holds a trace with very many blanks."""
    packed = repeated(HEAD, BLANKS, OVER, gzip_to)
    assert len(packed) * files.MAX_RATIO < OVER << 20
    return packed


def test_a_compressed_trace_that_is_a_bomb_is_refused_not_taken_for_damaged(tmp_path, bomb):
    assert "bomb" in refused(tmp_path / "s.duckdb", put(tmp_path, "rank0.json.gz", bomb), "bomb")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda bomb: tar_of([GOOD, ("rank1.json.gz", bomb)]),
        lambda bomb: zip_of([GOOD, ("deep/a.zip", zip_of([("rank1.json.gz", bomb)]))]),
        lambda bomb: repeated(tar_of([GOOD])[:1024] + BIG.tobuf() + HEAD, BLANKS, OVER, gzip_to),
        lambda bomb: repeated(tar_of([GOOD])[:1024] + BIG.tobuf() + HEAD, BLANKS, OVER, zstd_to),
    ],
    ids=["gz in tar", "gz in zip in zip", "tar.gz", "tar.zst"],
)
def test_bombs_in_archives_are_refused_before_anything_is_stored(tmp_path, bomb, wrap):
    refused(tmp_path / "s.duckdb", put(tmp_path, "a.archive", wrap(bomb)), "bomb")


def test_a_zip_is_refused_by_the_sizes_that_it_states(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(*GOOD)
        with archive.open("big.json", "w") as member:
            for _ in range(OVER):
                member.write(BLANKS)
    refused(tmp_path / "s.duckdb", put(tmp_path, "a.zip", out.getvalue()), "bomb")


def test_many_small_members_count_together(tmp_path, monkeypatch):
    """The limit holds for all of an archive; the variable raises it."""
    members = [(f"rank{r}.json.gz", gzip.compress(trace(r, note=str(r) * 400_000))) for r in range(4)]
    path = put(tmp_path, "a.zip", zip_of(members))
    monkeypatch.setenv(files.UNPACK_LIMIT, "0.001")
    line = refused(tmp_path / "s.duckdb", path, "bomb")
    assert files.UNPACK_LIMIT in line
    monkeypatch.setenv(files.UNPACK_LIMIT, "0.01")
    assert CliRunner().invoke(cli, ["ingest", "--store", str(tmp_path / "s.duckdb"), str(path)]).exit_code == 0


@pytest.mark.parametrize("said", ["much", "-1", "nan", "inf", "0"])
def test_a_limit_that_is_no_number_is_named(tmp_path, monkeypatch, said):
    monkeypatch.setenv(files.UNPACK_LIMIT, said)
    got = CliRunner().invoke(cli, ["doctor", str(put(tmp_path, "a.tar", tar_of([GOOD])))])
    assert got.exit_code == 2
    assert f"{files.UNPACK_LIMIT}={said}" in got.stderr


def test_a_tar_header_that_would_fill_the_memory_is_refused(tmp_path):
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 200 << 20
    packed = repeated(tar_of([GOOD])[:1024] + info.tobuf(tarfile.GNU_FORMAT), b"a" * (1 << 20), 200, gzip_to)
    refused(tmp_path / "s.duckdb", put(tmp_path, "a.tar.gz", packed), "bomb")


def test_what_is_refused_was_not_handed_out(tmp_path):
    path = put(tmp_path, "a.tar", OUTSIDE["tar, up"])
    with pytest.raises(Refused):
        next(archives.unpacked(path, "a.tar"))


def test_names_are_shown_in_one_line_that_a_terminal_can_take(tmp_path):
    path = put(tmp_path, "a.tar", tar_of([("a\n\x1b[31m\udcff.json", trace(0))]))
    got = CliRunner().invoke(cli, ["ingest", "--store", str(tmp_path / "s.duckdb"), str(path)])
    assert got.exit_code == 0
    assert len(got.stdout.splitlines()) == 1
    assert "\x1b" not in got.stdout


def test_refusing_is_said_by_doctor_too(tmp_path):
    got = CliRunner().invoke(cli, ["doctor", str(put(tmp_path, "a.zip", OUTSIDE["zip, symlink"]))])
    assert got.exit_code == 3
    assert "link" in got.stdout


def test_a_folder_with_a_bomb_keeps_its_other_traces(tmp_path, bomb):
    put(tmp_path, "in/a.tar", tar_of([("rank1.json.gz", bomb)]))
    put(tmp_path, "in/rank0.json", trace(0))
    got = CliRunner().invoke(cli, ["ingest", "--store", str(tmp_path / "s.duckdb"), str(tmp_path / "in"), "--json"])
    assert got.exit_code == 3
    assert [t["status"] for t in json.loads(got.stdout)["traces"]] == ["failed", "ok"]
