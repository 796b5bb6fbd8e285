// Package e2e tests the product as a user meets it: processes on loopback,
// beside promtool, a browser, an OpenAI client, a faulty network and, where
// one is installed, a real vLLM. It knows the product only by its binary.
package e2e
