"""Bundles: what is installed is what was published, or nothing is."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from graph_sites import ADD_A, Cart, record
from small_site import build

from stillweb.cli import cli
from stillweb.collections.branches import TEMPLATES, RecordedForms, read_forms, write_branches
from stillweb.collections.bundle import install_bundle, make_bundle, verify_bundle, verify_signature
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.learn.proof import ProvedForm, prove
from stillweb.collections.pack.seal import seal
from stillweb.errors import BundleMismatch, CollectionExists, MalformedWacz, UsageError
from stillweb.matching.derived.vocabulary import Vocabulary

SIGNED = Path(__file__).parent / "data" / "minisign"
KEY = (SIGNED / "key.pub").read_text().splitlines()[1]
RULES = "version: 1\nvolatile:\n  - {where: query, name: t, shape: seconds}\n"


@pytest.fixture
def site(tmp_path: Path) -> Collection:
    """A sealed collection with a proved form, rules and a certificate."""
    collection = build(tmp_path / "root")
    found = prove(record(lambda visit: Cart(visit, lambda items, notes: ""), ADD_A))
    assert isinstance(found, ProvedForm)
    write_branches(collection, RecordedForms((found.branch,), (), Vocabulary()))
    (collection.path / "rules.yaml").write_text(RULES)
    environment_id = seal(collection).environment_id
    certificate = {"environment_id": environment_id, "level": "exact"}
    (collection.path / "certificate-exact.json").write_text(json.dumps(certificate))
    (collection.path / "certificate-old.json").write_text('{"environment_id": "other"}')
    return collection


def published(site: Collection, folder: Path) -> Path:
    (folder / "tasks.yaml").write_text("- {id: one}\n")
    (folder / "CC-BY.md").write_text("\n# CC-BY-4.0\n\nName the authors.\n")
    path = folder / "site.wacz"
    make_bundle(site, path, tasks=[folder / "tasks.yaml"], licence=folder / "CC-BY.md")
    return path


def changed(path: Path, environment_id: str) -> Path:
    """Return a copy of a bundle that states another environment id."""
    target = path.with_name("changed.wacz")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as copy:
        for info in source.infolist():
            content = source.read(info)
            if info.filename == "datapackage.json":
                package = json.loads(content) | {"stillwebBundle": {"environment_id": environment_id}}
                content = json.dumps(package).encode()
            copy.writestr(info, content)
    return target


def test_an_installed_bundle_is_the_published_collection(site: Collection, tmp_path: Path) -> None:
    path = published(site, tmp_path)
    content = path.read_bytes()
    assert make_bundle(site, path).licence == "CC-BY-4.0"
    assert path.read_bytes() == content  # tasks and licence stay with the collection
    installed = install_bundle(path, tmp_path / "other", "site")
    assert installed == verify_bundle(path)
    assert installed.environment_id == seal(site).environment_id
    assert (installed.licence, installed.tasks) == ("CC-BY-4.0", ("tasks.yaml",))
    assert (installed.certificates, installed.signed) == (("certificate-exact.json",), "")
    other = Collection.open(tmp_path / "other", "site")
    assert (other.path / "rules.yaml").read_text() == RULES
    forms, before = read_forms(other), read_forms(site)
    assert forms is not None
    assert before is not None
    assert forms.branches == before.branches
    package = json.loads(zipfile.ZipFile(path).read("datapackage.json"))
    assert package["licenses"] == [{"title": "CC-BY-4.0", "path": "stillweb/LICENSE.md"}]
    assert [each.name for each in tmp_path.glob(".bundle-*")] == []
    with pytest.raises(CollectionExists):
        install_bundle(path, tmp_path / "other", "site")


@pytest.mark.parametrize("stated", ["0" * 64, ""])
def test_another_environment_id_installs_nothing(site: Collection, tmp_path: Path, stated: str) -> None:
    path = published(site, tmp_path)
    with pytest.raises(BundleMismatch, match="it seals to environment"):
        install_bundle(changed(path, stated), tmp_path / "other", "site")
    with pytest.raises(BundleMismatch, match="not 1234"):
        install_bundle(path, tmp_path / "other", "site", environment_id="1234")
    assert not (tmp_path / "other" / "site").exists()


def test_a_damaged_member_installs_nothing(site: Collection, tmp_path: Path) -> None:
    path = published(site, tmp_path)
    target = tmp_path / "damaged.wacz"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as copy:
        for info in source.infolist():
            content = source.read(info)
            copy.writestr(info, content + b"# changed\n" if info.filename.endswith("rules.yaml") else content)
    with pytest.raises(BundleMismatch, match=r"rules\.yaml differs from the digest"):
        install_bundle(target, tmp_path / "other", "site")
    assert not (tmp_path / "other" / "site").exists()


def test_what_is_no_bundle_is_reported(tmp_path: Path) -> None:
    (tmp_path / "text.wacz").write_text("text")
    with zipfile.ZipFile(tmp_path / "plain.wacz", "w") as archive:
        archive.writestr("datapackage.json", "{}")
    with pytest.raises(MalformedWacz, match="not a readable ZIP"):
        verify_bundle(tmp_path / "text.wacz")
    with pytest.raises(BundleMismatch, match="states no environment id"):
        verify_bundle(tmp_path / "plain.wacz")
    with pytest.raises(UsageError, match="no such file"):
        verify_bundle(tmp_path / "absent.wacz")
    with pytest.raises(UsageError, match="is not sealed"):
        make_bundle(Collection.create(tmp_path / "root", "empty"), tmp_path / "empty.wacz")


def test_malformed_templates_are_reported_and_left_out(site: Collection, tmp_path: Path) -> None:
    (site.path / TEMPLATES).write_bytes(b"no xz")
    report = import_files([make_wacz(site, tmp_path)], tmp_path / "root", "again")
    assert any(f"{TEMPLATES} is not imported" in each.what for each in report.defects)
    assert not (tmp_path / "root" / "again" / TEMPLATES).exists()


def make_wacz(site: Collection, folder: Path) -> Path:
    make_bundle(site, folder / "site.wacz")
    return folder / "site.wacz"


# --- signatures ----------------------------------------------------------------------------------------


def test_a_signature_of_minisign_is_verified() -> None:
    for key in (KEY, str(SIGNED / "key.pub")):
        assert verify_signature(SIGNED / "message.txt", key) == "stillweb bundle shop 1234"


OTHER_KEY = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"


@pytest.mark.parametrize(
    ("file", "old", "new", "key", "says"),
    [
        ("message.txt", b"itself", b"another", KEY, "was changed"),
        ("message.txt.minisig", b"shop", b"shed", KEY, "was changed"),
        ("message.txt.minisig", b"trusted comment: s", b"comment: s", KEY, "not a signature of minisign"),
        ("message.txt.minisig", b"\n", b"", KEY, "not a signature of minisign"),
        (
            "message.txt.minisig",
            b"",
            b"",
            OTHER_KEY,
            "key 60168DDE6189EA2B, not with E7620F1842B4E81F",
        ),
    ],
)
def test_another_file_comment_or_key_is_refused(tmp_path, file, old, new, key, says) -> None:
    for path in SIGNED.iterdir():
        shutil.copy(path, tmp_path)
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content.replace(old, new) if old else content)
    with pytest.raises(BundleMismatch, match=says):
        verify_signature(tmp_path / "message.txt", key)


def test_a_missing_signature_and_a_wrong_key_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BundleMismatch, match="there is no signature"):
        verify_signature(tmp_path / "file", KEY)
    for key in ("", "RWabc", KEY[:-4]):
        with pytest.raises(UsageError, match="public key of minisign"):
            verify_signature(tmp_path / "file", key)


def test_the_command_signs_by_minisign_and_verifies(site: Collection, tmp_path: Path) -> None:
    if shutil.which("minisign") is None:
        pytest.skip("minisign is not installed (apt install minisign)")
    public, secret, path = tmp_path / "key.pub", tmp_path / "key", tmp_path / "site.wacz"
    subprocess.run(["minisign", "-G", "-W", "-p", public, "-s", secret], check=True, capture_output=True)
    root = ["--collections", str(tmp_path / "root")]
    made = run("make", "small", *root, "-o", str(path), "--sign", str(secret), "--json")
    subprocess.run(["minisign", "-V", "-p", public, "-m", path], check=True, capture_output=True)
    assert json.loads(run("verify", str(path), "--public-key", str(public), "--json")) == json.loads(made)
    with path.open("r+b") as file:
        file.write(b"X")
    assert "was changed" in run("verify", str(path), "--public-key", str(public), status=1)


def run(*arguments: str, status: int = 0) -> str:
    ran = CliRunner().invoke(cli, ["bundle", *arguments])
    if status:
        assert isinstance(ran.exception, BundleMismatch)
        return str(ran.exception)
    assert ran.exit_code == 0, ran.output
    return ran.stdout
