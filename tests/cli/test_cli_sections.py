"""Options in sections: no option is lost, and no section names a missing one."""

from __future__ import annotations

from click.testing import CliRunner

from stillweb.cli.record.commands import crawl


def test_each_option_of_crawl_stands_in_its_help_once():
    text = CliRunner().invoke(crawl, ["--help"]).output
    named = [name for names in crawl.sections.values() for name in names]
    params = {param.name: param for param in crawl.params}
    assert set(named) <= set(params)
    assert len(named) == len(set(named))
    begins = [line.split()[0].rstrip(",") for line in text.splitlines() if line.startswith("  -")]
    # click keeps the help option of the first call: with `-h` if that came through the whole program.
    assert sorted({*begins} - {"-h", "--help"}) == sorted(
        param.opts[0] for param in params.values() if param.opts[0] != "urls"
    )
    assert len(begins) == len(set(begins))
    assert text.index("Pages to record:") < text.index("Sites and files:")
