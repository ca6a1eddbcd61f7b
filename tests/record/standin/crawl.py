"""A program that behaves as browsertrix-crawler 1.14.1 does, as far as its logs and its output show.

It takes the same arguments and the same YAML, writes the same JSON lines and ends in the same ways. Its
records are genuine: it takes a WACZ that browsertrix wrote apart, and writes the records of a page when the
page is "crawled". Written from the logs and the layout of that output; nothing here is browsertrix's own.

    ARCHIVE   a WACZ of browsertrix to take the pages from        CRAWLS  the volume, /crawls in the image
    HOLD      a page that takes until there are SIGNALS (1)       END     another way to end
"""

# ruff: noqa: T201  a program, which prints
from __future__ import annotations

import gzip
import json
import os
import re
import signal
import sys
import time
import zipfile
import zlib
from datetime import UTC, datetime
from pathlib import Path

import yaml

INFO, WARN, ERROR, FATAL = "info", "warn", "error", "fatal"
CODES = {"timelimit": 15, "sizelimit": 14, "space": 3, "crashed": 10, "disk": 16, "unheard": 99}


class Standin:
    def __init__(self, settings, volume):
        self.settings, self.volume = settings, volume
        self.name = settings["collection"]
        self.folder = volume / "collections" / self.name
        self.signals = 0
        self.log_lines = []
        self.pages = self.finished = self.queued = []
        self.excluded = 0

    def say(self, level, context, message, **details):
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        line = {"timestamp": stamp, "logLevel": level, "context": context, "message": message}
        text = json.dumps(line | {"details": details}, separators=(",", ":"))
        self.log_lines.append(text)
        print(text, flush=True)

    def statistics(self, pending):
        limit = int(self.settings.get("pageLimit", self.settings.get("limit", 0)))
        details = {
            "crawled": len(self.finished),
            "total": len(self.finished) + len(self.queued) + len(pending),
            "pending": len(pending),
            "failed": 0,
            "excluded": 0,
            "limit": {"max": limit, "hit": self.excluded > 0},
            "pendingPages": [json.dumps({"seedId": 0, "url": url, "depth": 0}) for url in pending],
        }
        self.say(INFO, "crawlStatus", "Crawl statistics", **details)

    def quit(self, code, message):
        self.say(FATAL, "general", f"{message}. Quitting")
        return code

    def seeds(self):
        return [each["url"] if isinstance(each, dict) else each for each in self.settings["seeds"]]

    def refused(self, url):
        self.say(INFO, "worker", "Starting page", workerid=0, page=url)
        self.statistics([url])
        why = "net::ERR_CONNECTION_REFUSED"
        where = {"page": url, "workerid": 0}
        self.say(
            WARN, "recorder", "Request failed", url=url, errorText=why, type="Document", status=0, **where
        )
        self.say(
            ERROR, "pageStatus", "Page Load Failed: retry limit reached",
            retry=0, retries=0, msg=f"{why} at {url}", url=url, loadState=0, **where,
        )  # fmt: skip

    def run(self):
        end = os.environ.get("END", "")
        if end == "redis":
            while True:
                self.say(WARN, "state", "Waiting for redis at redis://localhost:6379/0")
                time.sleep(0.05)
        if str(self.settings.get("workers", 1)) == "0":
            print("Options:\n  --workers\n\nInvalid values: workers must be positive", file=sys.stderr)
            return 1
        if "-" in self.settings.get("lang", ""):
            return self.quit(17, f"Invalid ISO-639-1 country code for --lang: {self.settings['lang']}.")
        self.say(INFO, "general", "Browsertrix-Crawler 1.14.1 (with warcio.js 2.4.11)")
        bad = [url for url in self.seeds() if not re.match(r"https?://[^/]+", url)]
        if bad or end == "badurl":
            url = (bad or self.seeds())[0]
            self.say(WARN, "general", "Invalid Page - not a valid URL", url=url)
            self.say(ERROR, "general", "Failed to create seed", error="Error: Invalid URL", url=url)
            return self.quit(17, "No valid seeds specified, aborting crawl")
        self.say(INFO, "general", "Seeds", firstSeed={"url": self.seeds()[0]}, seedCount=len(self.seeds()))
        self.say(INFO, "worker", "Creating 1 workers")
        if end == "refusedseed":
            self.refused(self.seeds()[0])
            return self.quit(1, "Seed Page Load Failed, failing crawl")
        if end == "faillimit":
            self.refused(self.seeds()[0])
            return self.quit(12, "Failed threshold reached 1 >= 1, failing crawl")
        if end == "noname":
            self.say(
                ERROR, "pageStatus", "Page Load Aborted: DNS Error: retry limit reached",
                retry=1, retries=1, page=self.seeds()[0], workerid=1,
            )  # fmt: skip
            self.say(ERROR, "general", "Crawl failed, no pages crawled successfully")
            return 9
        if end == "nopage":
            self.refused(self.seeds()[0])
            self.say(INFO, "general", "Crawling done")
            return 9
        return self.crawl(end)

    def crawl(self, end):
        source = Source(Path(os.environ["ARCHIVE"]))
        state = self.settings.get("state") or {}
        limit = int(self.settings.get("pageLimit", self.settings.get("limit", 0)))
        self.finished = list(state.get("finished", ()))
        failed = [json.loads(page)["url"] for page in state.get("failed", ())]  # without retries left
        self.queued = [url for url in source.urls if url not in (*self.finished, *failed)]
        if limit:
            self.excluded = max(0, len(self.queued) - limit)
            self.queued = self.queued[: max(0, limit - len(self.finished))]
        hold, crawled = int(os.environ.get("HOLD", "0")), []
        print("a line that is no JSON, as the entrypoint of an image may say", flush=True)
        writer = Writer(self.folder, self.name, source)
        while self.queued and not self.signals:
            url = self.queued.pop(0)
            self.say(INFO, "worker", "Starting page", workerid=0, page=url)
            self.statistics([url])
            self.say(INFO, "general", "Awaiting page load", page=url, workerid=0)
            writer.write(url)
            crawled.append(url)
            while hold and len(crawled) == hold and self.signals < int(os.environ.get("SIGNALS", "1")):
                time.sleep(0.01)  # a page that takes its time: a signal lets it finish
            self.finished.append(url)
            self.say(INFO, "pageStatus", "Page Finished", loadState=4, page=url, workerid=0)
            if end in CODES and len(crawled) == 1:
                break
        if end in ("space", "crashed"):
            writer.close(cut=end == "space")
            self.save_state()
            self.say(ERROR, "browser" if end == "crashed" else "storage", f"Ended: {end}")
            return CODES[end]
        writer.close()
        if self.signals or end in CODES:
            self.say(INFO, "general", "Crawler interrupted, gracefully finishing current pages")
        self.save_state()
        self.statistics([])
        self.say(INFO, "general", "Crawling done")
        if self.signals > 1:
            return 13
        self.package()
        return 11 if self.signals else CODES.get(end, 0)

    def save_state(self):
        queued = [json.dumps({"url": url, "seedId": 0, "depth": 1, "extraHops": 0}) for url in self.queued]
        state = {"id": self.name, "extraSeeds": [], "finished": self.finished, "queued": queued}
        state |= {"pending": [], "sitemapDone": False, "failed": [], "errors": [], "excluded": []}
        folder = self.folder / "crawls"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{datetime.now(UTC):%Y%m%d%H%M%S%f}-{self.name}.yaml"
        self.say(INFO, "general", f"Saving crawl state to: {path}")
        path.write_text(yaml.safe_dump({"state": state}), "utf-8")

    def package(self):
        self.say(INFO, "general", "Generating WACZ")
        self.say(INFO, "general", "Num WARC Files: 3")
        (self.folder / "logs").mkdir(exist_ok=True)
        (self.folder / "logs" / "crawl.log").write_text("\n".join(self.log_lines) + "\n", "utf-8")
        with zipfile.ZipFile(self.folder / f"{self.name}.wacz", "w") as archive:
            for folder in ("archive", "pages", "logs"):
                for path in sorted((self.folder / folder).iterdir()):
                    archive.write(path, f"{folder}/{path.name}")
            archive.writestr("datapackage.json", json.dumps({"wacz_version": "1.1.1", "resources": []}))


class Source:
    """A genuine WACZ, by page: the lines of its lists, and the records that belong to each."""

    def __init__(self, path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            self.lists = {
                name: archive.read(name).decode("utf-8").splitlines() for name in names if "pages/" in name
            }
            self.files = {name: list(members(archive.read(name))) for name in names if "archive/" in name}
        self.lines = {
            json.loads(line)["url"]: (name, line)
            for name in ("pages/pages.jsonl", "pages/extraPages.jsonl")
            for line in self.lists[name][1:]
            if line
        }
        self.urls = list(self.lines)


def members(raw):
    """Yield the gzip members of a file, each with the id of its page or the URL of its page's `urn:`."""
    while raw:
        unpacker = zlib.decompressobj(31)
        text = unpacker.decompress(raw)
        used = len(raw) - len(unpacker.unused_data)
        head = text.split(b"\r\n\r\n", 1)[0].decode("utf-8")
        page = re.search(r"^WARC-Page-ID: (.*?)\r?$", head, re.MULTILINE)
        urn = re.search(r"^WARC-Target-URI: urn:\w+:(.*?)\r?$", head, re.MULTILINE)
        yield (page or urn)[1] if page or urn else "", raw[:used]
        raw = unpacker.unused_data


class Writer:
    """Writes the records of pages as they are crawled, and the lists of pages."""

    def __init__(self, folder, name, source):
        self.folder, self.source = folder, source
        self.stamp = f"{datetime.now(UTC):%Y%m%d%H%M%S%f}"[:17]
        for each in ("archive", "pages"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        self.out = {}
        for path in source.files:
            kind = Path(path).name.split("-")[0]
            middle = f"-{name}" if kind == "rec" else ""
            end = "-0" if kind == "rec" else ""
            self.out[path] = (folder / "archive" / f"{kind}{middle}-{self.stamp}{end}.warc.gz").open("wb")
            self.out[path].write(source.files[path][0][1])  # warcinfo
        for path, lines in source.lists.items():
            (folder / path).write_text(lines[0] + "\n", "utf-8")

    def write(self, url):
        path, line = self.source.lines[url]
        wanted = {url, json.loads(line)["id"]}
        for name, found in self.source.files.items():
            for of, raw in found:
                if of in wanted:
                    self.out[name].write(raw)
            self.out[name].flush()
        with (self.folder / path).open("a", encoding="utf-8") as out:
            out.write(line + "\n")

    def close(self, *, cut=False):
        for stream in self.out.values():
            if cut:
                stream.write(gzip.compress(b"WARC/1.1\r\nWARC-Type: response\r\n" + b"x" * 400)[:60])
            stream.close()


def main(arguments):
    volume = Path(os.environ.get("CRAWLS", "/crawls"))
    if os.geteuid() == 0 and (owner := volume.stat()).st_uid:
        os.setgid(owner.st_gid)  # as the image's entrypoint does
        os.setuid(owner.st_uid)
    config = volume / Path(arguments[arguments.index("--config") + 1]).name
    standin = Standin(yaml.safe_load(config.read_text("utf-8")), volume)

    def heard(number, _frame):
        standin.signals += 1
        standin.say(INFO, "general", f"{signal.Signals(number).name} received...")
        standin.say(INFO, "general", "SIGNAL: interrupt request received...")

    signal.signal(signal.SIGINT, heard)
    signal.signal(signal.SIGTERM, heard)
    return standin.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
