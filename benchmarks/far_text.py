"""Make train.jsonl.gz and test.jsonl.gz (rows {"text": …}) out of files of text, source code, HTML or manual pages.

    python benchmarks/far_text.py FOLDER OUT [--name '*.h'] [--kind plain|html|man] [--megabytes 8] [--least-foreign X]

The text of `quality.py`'s far experts, on a Debian system:

    apt-get download manpages-zh && dpkg-deb -x manpages-zh_*.deb zh
    python benchmarks/far_text.py zh/usr/share/man/zh_CN far/corpora/chinese --kind man --least-foreign 0.15
    python benchmarks/far_text.py /usr/include far/corpora/c_headers --name '*.h'
    python benchmarks/far_text.py /usr/include/c++ far/corpora/cpp_headers
    python benchmarks/far_text.py es/usr/share/man/es far/corpora/spanish --kind man          # manpages-es
    python benchmarks/far_text.py pt/usr/share/man/pt_BR far/corpora/portuguese --kind man    # manpages-pt-br
    python benchmarks/far_text.py ja/usr/share/man/ja far/corpora/japanese --kind man --least-foreign 0.15

A file is a document, cut at blank lines into parts of at most 12,000 characters; parts below 200 characters and parts
that stood there before are left out. One file in ten, by the digest of its path, is test text: no file is in both.

An expert on such text, all weights trained, as those of `quality.py`:

    reg train-expert chinese --base ../shared/experts/base --data far/corpora/chinese/train.jsonl.gz --trunk free \\
        --tokens 819200 --batch-size 16 --out far/chinese
"""

import argparse
import gzip
import hashlib
import html
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

LONGEST, SHORTEST = 12_000, 200


def read(path: Path, kind: str) -> str:
    """Return the text of a file: decompressed, without markup."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = data.decode("utf-8", errors="ignore").replace("\r", "")
    if kind == "html":
        text = re.sub(r"(?is)<(script|style|head)\b.*?</\1>", "", text)
        text = html.unescape(re.sub(r"(?s)<[^>]*>", "", text))
    if kind == "man":
        lines = []
        for line in text.splitlines():
            if re.match(r"[.'](\\\"|TH|de|ds|so|if|ie|el|nr|tr|hy|ad|ft|nh|\.)", line):
                continue
            line = re.sub(r"^[.'][A-Za-z]+ ?", "", line)
            line = re.sub(r"\\f(\(..|\[[^]]*\]|.)|\\s[-+]?\d|\\[&/,|^%]", "", line)
            lines.append(re.sub(r"\\\((..)", "", line).replace("\\-", "-").replace("\\e", "\\").replace('"', ""))
        text = "\n".join(lines)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip()


def parts(text: str) -> Iterator[str]:
    """Yield parts of at most `LONGEST` characters, cut at blank lines."""
    part = ""
    for paragraph in text.split("\n\n"):
        if part and len(part) + len(paragraph) > LONGEST:
            yield part
            part = ""
        part = f"{part}\n\n{paragraph}" if part else paragraph[:LONGEST]
    yield part


def main() -> None:
    """Read, cut, split, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", default="*", help="which files, as in a shell")
    parser.add_argument("--kind", choices=("plain", "html", "man"), default="plain")
    parser.add_argument("--megabytes", type=float, default=8.0, help="of train text at most, in UTF-8")
    parser.add_argument(
        "--least-foreign", type=float, default=0.0, help="share of characters beyond Latin a part needs"
    )
    arguments = parser.parse_args()
    paths = sorted(path for path in arguments.folder.rglob(arguments.name) if path.is_file() and not path.is_symlink())
    random.Random(0).shuffle(paths)
    rows: dict[str, list[str]] = {"train": [], "test": []}
    size = {"train": 0, "test": 0}
    room = {"train": arguments.megabytes * 1e6, "test": arguments.megabytes * 1e5}
    seen = set()
    for path in paths:
        name = str(path.relative_to(arguments.folder))
        half = "test" if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10 == 0 else "train"
        for part in parts(read(path, arguments.kind)):
            foreign = sum(ord(c) > 0x24F for c in part) / max(1, len(part))
            digest = hashlib.sha256(re.sub(r"\W+", "", part[:1500]).lower().encode()).digest()
            if len(part) < SHORTEST or foreign < arguments.least_foreign or digest in seen or size[half] > room[half]:
                continue
            seen.add(digest)
            rows[half].append(part)
            size[half] += len(part.encode())
    arguments.out.mkdir(parents=True, exist_ok=True)
    for half, texts in rows.items():
        random.Random(0).shuffle(texts)
        with gzip.open(arguments.out / f"{half}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        print(f"{arguments.out}/{half}.jsonl.gz: {len(texts):,} parts, {size[half]:,} bytes")


if __name__ == "__main__":
    main()
