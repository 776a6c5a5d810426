# Engines on GPUs: vLLM's CUDA build. CUDA itself comes as wheels, the driver from the node.
#
#   make image-gpu
#   docker build -f docker/gpu.Dockerfile -t antefix/antefix-gpu:0.1.0 .
#
# Both images have one base: Ray wants the same Python on all nodes of a cluster. A digest pins it
# altogether: --build-arg BASE=python:3.11.14-slim-bookworm@sha256:...
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS dependencies
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
# Where pip finds wheels: its own index, or --no-index --find-links and a folder mounted there.
ARG WHEELS_FROM=""
WORKDIR /build
COPY requirements/gpu.lock ./
# Wheels alone: nothing is compiled here, and no package's setup.py runs. The CUDA toolkit of the
# wheels gets the names that compilers look for. nvidia, torch and vllm have gigabytes each, and become
# separate layers, which are pulled in parallel.
# hadolint ignore=SC2086,DL3003 # options and their values
RUN pip install --no-cache-dir --no-deps --only-binary :all: ${WHEELS_FROM} --require-hashes -r gpu.lock \
    && cd /opt/venv/lib/python3.11/site-packages \
    && ln -s lib nvidia/cu13/lib64 && ln -s libcudart.so.13 nvidia/cu13/lib/libcudart.so \
    && ln -s lib/python3.11/site-packages/nvidia/cu13 /opt/venv/cuda \
    && mkdir /opt/large && mv nvidia torch vllm /opt/large

FROM ${BASE}
# Triton and torch.compile call a compiler when an engine starts; KubeRay before 1.6 asks with wget
# whether a pod is alive.
# hadolint ignore=DL3008 # Debian keeps one version of a package at a time: a pin soon fails
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ wget \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 antefix \
    && useradd --uid 1000 --gid 1000 --create-home antefix \
    # OpenShift runs it as a user of no name, whose group is 0
    && chgrp 0 /home/antefix && chmod g=u /home/antefix
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=dependencies /opt/large/nvidia /opt/venv/lib/python3.11/site-packages/nvidia
COPY --from=dependencies /opt/large/torch /opt/venv/lib/python3.11/site-packages/torch
COPY --from=dependencies /opt/large/vllm /opt/venv/lib/python3.11/site-packages/vllm
# Why each is set: docs/kubernetes/gpu-image.md
ENV PATH=/opt/venv/bin:$PATH:/usr/local/nvidia/bin \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/local/nvidia/lib \
    HOME=/home/antefix \
    USER=antefix \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NCCL_CUMEM_HOST_ENABLE=0 \
    VLLM_USE_FLASHINFER_SAMPLER=0 \
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
LABEL org.opencontainers.image.title="antefix-gpu" \
      org.opencontainers.image.description="Antefix's engines on NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
