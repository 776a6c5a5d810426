# Engines for nodes with simulated GPUs: the CPU image, with the versions of requirements/gpu.lock
# where these differ. Pickles and protocols then cross between two environments, as between the two
# images of a real cluster.
#
#   buildah build -f tests/kubernetes_long/pretended_gpu.Dockerfile -t docker.io/antefix/antefix-pretended-gpu:0.1.0 .
ARG BASE=docker.io/antefix/antefix-cpu:0.1.0
FROM ${BASE}
USER 0
COPY requirements/gpu.lock /build/
# pip installs those that are here in another version; a `+cpu` build counts as the same
RUN pip freeze | sed -n 's/==.*//p' > /build/here.txt \
    && sed -n 's/ *\\$//p' /build/gpu.lock \
    | awk -F '==' 'NR == FNR {here[$1]; next} $1 in here' /build/here.txt - > /build/locked.txt \
    && pip install --no-cache-dir --no-deps --only-binary :all: --requirement /build/locked.txt
USER 1000:1000
