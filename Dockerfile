# A small image of the command line, which runs as a user without rights. `make image` builds and tries it.
#
#   docker run --rm --network none --user "$(id -u):$(id -g)" --volume "$PWD:/data" kvtrace \
#       anonymize day.jsonl -o trace.jsonl
ARG PYTHON=3.13
FROM python:${PYTHON}-slim-bookworm AS build
# Debian deletes old versions of packages, so a version that is named here would soon be missing.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src src
COPY tools/kernel_stubs.py tools/
ARG EXTRAS=parquet,report
# hadolint ignore=DL3013
RUN python -m venv --without-pip /opt/kvtrace \
    && pip --python /opt/kvtrace/bin/python install --no-cache-dir ".[${EXTRAS}]"

FROM python:${PYTHON}-slim-bookworm
COPY --from=build /opt/kvtrace /opt/kvtrace
# HOME: any --user can write there; the cache of tokenizer trials is all that it holds
ENV PATH=/opt/kvtrace/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /data
ENTRYPOINT ["kvtrace"]
CMD ["--help"]
