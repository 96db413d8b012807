"""Break central behaviours one at a time, and see that tests notice.

    python tools/mutants.py             every mutant of mutants.toml, some ten minutes
    python tools/mutants.py store gate  those whose file or behaviour has one of these words

A mutant is a behaviour. Whoever rewrites the line that it breaks makes it anew for the new line.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from shutil import copytree, ignore_patterns

ROOT = Path(__file__).parent.parent


def mutants(words: list[str]) -> list[dict[str, str]]:
    known = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutant"]
    return [each for each in known if not words or any(word in each["file"] + each["behaviour"] for word in words)]


def fails(tree: Path, tests: str, *more: str) -> bool:
    environment = {"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *more, *tests.split()]
    code = subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False).returncode
    return code not in (0, 5)  # 5: every test of these files is a long one


def caught(file: Path, mutant: dict[str, str], tree: Path) -> bool:
    """Whether the tests fail with the mutant and pass without it; the quick ones first."""
    whole = file.read_text()
    changed = whole.replace(mutant["old"], mutant["new"])
    compile(changed, mutant["file"], "exec")
    for more in (["--quick"], []):
        file.write_text(changed)
        broken = fails(tree, mutant["tests"], *more)
        file.write_text(whole)
        if broken:
            return not fails(tree, mutant["tests"], *more)
    return False


def main(words: list[str]) -> int:
    chosen, survived = mutants(words), 0
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "tree"
        copytree(ROOT, tree, ignore=ignore_patterns(".git", ".venv", "build", "runs", "__pycache__", ".*_cache"), symlinks=True)
        for each in chosen:
            file = tree / each["file"]
            if (times := file.read_text().count(each["old"])) != 1:
                sys.exit(f"{each['behaviour']}: its line stands {times} times in {each['file']}; make the mutant anew")
            noticed = caught(file, each, tree)
            survived += not noticed
            print("caught  " if noticed else "SURVIVED", each["behaviour"], flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} caught")
    return survived


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
