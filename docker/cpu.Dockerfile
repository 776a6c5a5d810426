# All that needs no GPU: Ray's head, the gateways, the chart's jobs, and engines on CPUs. The
# embedded model is in it, so that such an engine needs no network.
#
#   make image-cpu
#   docker build -f docker/cpu.Dockerfile -t antefix/antefix-cpu:0.1.0 .
#
# Both images have one base: Ray wants the same Python on all nodes of a cluster. A digest pins it
# altogether: --build-arg BASE=python:3.11.14-slim-bookworm@sha256:...
ARG BASE=python:3.11.14-slim-bookworm

# No stage copies the packages: some builders read all of what is copied to see whether it changed.
FROM ${BASE} AS packages
# vLLM's CPU build is linked to libnuma; torch.compile calls g++ when an engine starts; the health
# check below, and KubeRay before 1.6 in pods without a probe of theirs, ask with wget.
# hadolint ignore=DL3008 # Debian keeps one version of a package at a time: a pin soon fails
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 wget \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 antefix \
    && useradd --uid 1000 --gid 1000 --create-home antefix \
    # OpenShift runs it as a user of no name, whose group is 0
    && chgrp 0 /home/antefix && chmod g=u /home/antefix
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
# Where pip finds PyTorch's CPU build: another index, or --find-links and a folder mounted there.
ARG TORCH_FROM="--index-url https://download.pytorch.org/whl/cpu"
WORKDIR /build
COPY requirements/torch.txt requirements/cpu.lock ./
# Wheels alone: nothing is compiled here, and no package's setup.py runs.
# hadolint ignore=SC2086,DL3003 # an option and its value
RUN pip install --no-cache-dir --no-deps --only-binary :all: ${TORCH_FROM} -r torch.txt \
    && pip install --no-cache-dir --no-deps --only-binary :all: --require-hashes -r cpu.lock \
    # 300 MB that nothing here loads: tests, a second client of Kubernetes, Java's part of Ray
    && cd /opt/venv/lib/python3.11/site-packages \
    && rm -r kubernetes/aio ray/jars torch/test torch/bin/test_* torch/bin/*Test \
    && find matplotlib numba numpy sympy -type d -name tests -prune -exec rm -r {} +

FROM packages AS model
WORKDIR /opt/antefix
# No more than makes the model: a change elsewhere must not make it again.
COPY common common
COPY deployments/__init__.py deployments/
COPY deployments/models deployments/models
ENV ANTEFIX_CACHE=/opt/models
RUN python -c "from deployments.models.model import embedded_model; embedded_model(print)" \
    # only its maker may read it
    && chmod -R a+rX /opt/models

FROM packages
COPY --from=model /opt/models /opt/models
ENV HOME=/home/antefix \
    USER=antefix \
    ANTEFIX_CACHE=/opt/models \
    PYTHONUNBUFFERED=1 \
    DO_NOT_TRACK=1 \
    RAY_USAGE_STATS_ENABLED=0
# Installed before its code is copied, from where it will be: a change of the code makes only the
# layers below.
COPY pyproject.toml /opt/antefix/
# all that pyproject.toml names
COPY requirements/operator.in requirements/base.in requirements/cpu.in requirements/gpu.in \
    requirements/quantize.in /opt/antefix/requirements/
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable /opt/antefix
WORKDIR /home/antefix
EXPOSE 8000 9464
# Only for Docker, where `antefix up --foreground` runs; on Kubernetes the chart has probes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m \
    CMD ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8000/health/live"]
CMD ["antefix", "--help"]
# Compiled now: the user who runs it may not write there.
COPY . /opt/antefix
RUN python -m compileall -q /opt/antefix && chmod -R a+rX /opt/antefix
# A number: runAsNonRoot does not accept a name.
USER 1000:1000
# Below every RUN, each of which would run anew with each commit.
ARG VERSION=unknown REVISION=unknown
LABEL org.opencontainers.image.title="antefix-cpu" \
      org.opencontainers.image.description="Antefix without GPUs: head, gateways, engines on CPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
