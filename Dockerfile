# Both stages are of the same Debian release: the binary needs the glibc it was
# linked against or a newer one.
FROM golang:1.26.8-trixie AS build
WORKDIR /src
COPY . .
# NVML is bound through cgo. Without this, a build stage that lost its C
# compiler would quietly give an exporter that sees no GPU.
ENV CGO_ENABLED=1
ARG VERSION=unknown
ARG REVISION=unknown
ARG BRANCH=unknown
ARG DATE=unknown
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/go/build \
    GOCACHE="${GOCACHE:-/go/build}" make build VERSION="$VERSION" REVISION="$REVISION" BRANCH="$BRANCH" DATE="$DATE"

# glibc, CA certificates and time zones; no shell. The NVIDIA container toolkit
# brings libnvidia-ml.so.1 of the node's driver into it.
FROM gcr.io/distroless/base-nossl-debian13:nonroot
ARG VERSION=unknown
ARG REVISION=unknown
ARG DATE=unknown
LABEL org.opencontainers.image.title="headroom_exporter" \
      org.opencontainers.image.description="How much more load an LLM inference replica can take: a Prometheus exporter and sidecar" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$DATE"
COPY --from=build /src/bin/headroom_exporter /usr/bin/headroom_exporter
COPY LICENSE /usr/share/doc/headroom_exporter/LICENSE
# `utility` is NVML and nothing else. Where the toolkit is absent or is told to
# ignore these, the exporter runs without GPU readings and says so.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
# A number, because Kubernetes cannot check runAsNonRoot against a name.
USER 65532:65532
EXPOSE 9845
ENTRYPOINT ["/usr/bin/headroom_exporter"]
