package deploy

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/kubernetes"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
)

func scrapeConfigs(t *testing.T, name string) []*config.ScrapeConfig {
	t.Helper()
	loaded, err := config.LoadFile(filepath.Join(root, "deploy/prometheus", name), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := loaded.GetScrapeConfigs()
	if err != nil {
		t.Fatal(err)
	}
	return jobs
}

// The targets are the services of deploy/compose at the ports they listen on,
// with the labels of one replica.
func TestStaticScrape(t *testing.T) {
	var targets []string
	for _, job := range scrapeConfigs(t, "static.yml") {
		for _, discovered := range job.ServiceDiscoveryConfigs {
			for _, group := range discovered.(discovery.StaticConfig) {
				targets = append(targets, addresses(group)...)
				if diff := cmp.Diff(model.LabelSet{"namespace": "default", "pool": "chat", "pod": "chat-0"}, group.Labels); diff != "" {
					t.Errorf("labels of %s (-want +got):\n%s", job.JobName, diff)
				}
			}
		}
	}
	if want := []string{"headroom:9845", "engine:8000"}; !slices.Equal(targets, want) {
		t.Errorf("targets %q, want %q", targets, want)
	}
}

func addresses(group *targetgroup.Group) []string {
	var addresses []string
	for _, target := range group.Targets {
		addresses = append(addresses, string(target[model.AddressLabel]))
	}
	return addresses
}

func TestPromtoolAcceptsStaticScrape(t *testing.T) {
	promtool, err := filepath.Abs(filepath.Join(root, "e2e/bin/promtool"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(promtool); err != nil {
		missing(t, "e2e/bin/promtool is not built; make e2e/bin/promtool builds it")
	}
	output, err := exec.Command(promtool, "check", "config", filepath.Join(root, "deploy/prometheus/static.yml")).CombinedOutput()
	if err != nil {
		t.Errorf("promtool check config: %v\n%s", err, output)
	}
}

// Of the targets that Kubernetes' discovery finds, both pages of a running
// engine pod are kept and nothing else.
func TestKubernetesScrape(t *testing.T) {
	jobs := scrapeConfigs(t, "kubernetes.yml")
	if len(jobs) != 1 || len(jobs[0].ServiceDiscoveryConfigs) != 1 {
		t.Fatalf("%d jobs, want one with one discovery", len(jobs))
	}
	discovered, ok := jobs[0].ServiceDiscoveryConfigs[0].(*kubernetes.SDConfig)
	if !ok || discovered.Role != kubernetes.RolePod {
		t.Fatalf("discovery %+v, want pods", jobs[0].ServiceDiscoveryConfigs[0])
	}
	for _, test := range []struct {
		port, phase string
		keep        bool
	}{
		{"http", "Running", true},
		{"headroom", "Running", true},
		{"headroom", "Pending", true}, // the sidecar runs while the engine is pulled
		{"grpc", "Running", false},
		{"", "Running", false},
		{"http", "Succeeded", false},
		{"headroom", "Failed", false},
	} {
		builder := labels.NewBuilder(labels.FromStrings(
			"__meta_kubernetes_pod_container_port_name", test.port, "__meta_kubernetes_pod_phase", test.phase,
			"__meta_kubernetes_namespace", "inference", "__meta_kubernetes_pod_name", "vllm-0", "__meta_kubernetes_pod_container_name", "engine",
			"__meta_kubernetes_pod_label_app_kubernetes_io_name", "vllm", "__meta_kubernetes_pod_label_llm_d_ai_role", "decode",
		))
		kept := relabel.ProcessBuilder(builder, jobs[0].RelabelConfigs...)
		got := builder.Labels()
		if kept != test.keep {
			t.Errorf("port %q of a pod that is %s: kept %t, want %t", test.port, test.phase, kept, test.keep)
		}
		for name, want := range map[string]string{"namespace": "inference", "pod": "vllm-0", "container": "engine", "pool": "vllm", "role": "decode"} {
			if kept && got.Get(name) != want {
				t.Errorf("label %s is %q, want %q", name, got.Get(name), want)
			}
		}
	}
}
