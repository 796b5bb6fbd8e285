// Package deploy tests what people deploy with: the Dockerfile and the examples
// under deploy/. Each is read by the code that will read it for real: BuildKit,
// buildah, kustomize, Kubernetes' and the Prometheus operator's types,
// Prometheus, Compose and systemd. It is a module of its own, so that only
// these tests carry those dependencies.
package deploy
