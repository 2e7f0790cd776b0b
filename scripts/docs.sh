#!/usr/bin/env bash
# Builds the site of the documentation into build-docs/site. `make docs`. Fails if a link leads nowhere or a page is in
# no index. The packages come from requirements-docs.lock, into an environment of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
environment=build-docs/environment
key=$({ cat requirements-docs.lock; "$python" -VV; } | sha256sum | cut -c1-16)
if [ "$(cat $environment/key 2>/dev/null)" != "$key" ]; then
  rm -rf $environment
  "$python" -m venv $environment
  $environment/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-docs.lock
  echo "$key" > $environment/key
fi

# The pages in the folders that they have here, so that links between them hold, and nothing else.
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
cp -- *.md LICENSE "$source"
cp -r docs scripts/docs_site/*.{css,js} "$source"
KEEPSTEP_DOCS_SOURCE=$source NO_MKDOCS_2_WARNING=true $environment/bin/python -m mkdocs build --strict \
  -f scripts/docs_site/mkdocs.yml  # not --quiet: it then counts no warnings, and all would pass
echo "docs: build-docs/site/index.html"
