package deploy

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/discovery/kubernetes"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	autoscaling "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// objects is what kustomize makes of the folder named of an overlay, decoded.
func objects(t *testing.T, components ...string) (all []runtime.Object) {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(overlay(t, components...), "overlay")
	if err != nil {
		t.Fatal(err)
	}
	for _, resource := range resources.Resources() {
		document, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := strict(t).Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		all = append(all, object)
	}
	return all
}

// The operator's types accept each PrometheusRule, and nothing is lost of it.
func TestPrometheusRules(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "deploy/kubernetes/rules/*-*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var alerts, records, got int
	for _, object := range objects(t, "rules") {
		rule, ok := object.(*monitoring.PrometheusRule)
		if !ok {
			continue
		}
		got++
		for _, group := range rule.Spec.Groups {
			for _, r := range group.Rules {
				switch {
				case r.Expr.StrVal == "":
					t.Errorf("%s: %s%s has no expression", rule.Name, r.Record, r.Alert)
				case r.Alert != "" && r.Annotations["runbook_url"] != "" && r.Labels["severity"] != "":
					alerts++
				case r.Record != "":
					records++
				default:
					t.Errorf("%s: %+v is neither an alert nor a recording rule", rule.Name, r)
				}
			}
		}
	}
	if got != len(files) || alerts < 40 || records < 90 {
		t.Errorf("%d PrometheusRules of %d files, %d alerts, %d recording rules", got, len(files), alerts, records)
	}
}

// fleetLabels are what docs/fleet.md asks of a scrape.
var fleetLabels = map[string]string{"namespace": "inference", "pod": "vllm-0", "pool": "vllm", "role": "decode", "zone": "a"}

// discovered are the meta labels of a pod that has all of them.
func discovered() labels.Labels {
	return labels.FromStrings(
		"__meta_kubernetes_pod_container_port_name", "headroom", "__meta_kubernetes_pod_phase", "Running",
		"__meta_kubernetes_namespace", "inference", "__meta_kubernetes_pod_name", "vllm-0", "__meta_kubernetes_pod_container_name", "headroom",
		"__meta_kubernetes_pod_label_app_kubernetes_io_name", "vllm", "__meta_kubernetes_pod_label_llm_d_ai_role", "decode",
		"__meta_kubernetes_node_label_topology_kubernetes_io_zone", "a",
	)
}

func TestFleetScrape(t *testing.T) {
	for _, job := range scrapeConfigs(t, "fleet.yml") {
		if job.JobName != "inference-engine" {
			continue
		}
		if sd, ok := job.ServiceDiscoveryConfigs[0].(*kubernetes.SDConfig); !ok || !sd.AttachMetadata.Node {
			t.Error("without the node's metadata there is no zone")
		}
		builder := labels.NewBuilder(discovered())
		if !relabel.ProcessBuilder(builder, job.RelabelConfigs...) {
			t.Fatal("the exporter is dropped")
		}
		for name, want := range fleetLabels {
			if got := builder.Labels().Get(name); got != want {
				t.Errorf("label %s is %q, want %q", name, got, want)
			}
		}
		return
	}
	t.Error("no job inference-engine")
}

// The operator attaches namespace and pod; the component attaches the others,
// to both pages alike.
func TestPoolLabels(t *testing.T) {
	for _, object := range objects(t, "podmonitor", "pool-labels") {
		monitor, ok := object.(*monitoring.PodMonitor)
		if !ok {
			continue
		}
		if monitor.Spec.AttachMetadata == nil || monitor.Spec.AttachMetadata.Node == nil || !*monitor.Spec.AttachMetadata.Node {
			t.Error("without the node's metadata there is no zone")
		}
		for _, endpoint := range monitor.Spec.PodMetricsEndpoints {
			got := map[string]string{"namespace": "inference", "pod": "vllm-0"}
			for _, r := range endpoint.RelabelConfigs {
				for _, source := range r.SourceLabels {
					got[r.TargetLabel] = discovered().Get(string(source))
				}
			}
			if diff := cmp.Diff(fleetLabels, got); diff != "" {
				t.Errorf("labels of port %s (-want +got):\n%s", *endpoint.Port, diff)
			}
		}
		return
	}
	t.Error("no PodMonitor")
}

// checkBehavior holds an autoscaler to growing at once and shrinking slowly.
func checkBehavior(t *testing.T, name string, b *autoscaling.HorizontalPodAutoscalerBehavior) {
	t.Helper()
	if b == nil || b.ScaleUp == nil || b.ScaleDown == nil || b.ScaleUp.StabilizationWindowSeconds == nil || b.ScaleDown.StabilizationWindowSeconds == nil {
		t.Fatalf("%s has no behaviour", name)
	}
	if up, down := *b.ScaleUp.StabilizationWindowSeconds, *b.ScaleDown.StabilizationWindowSeconds; up != 0 || down < 600 || down > 1800 {
		t.Errorf("%s waits %d s before it grows and %d s before it shrinks, want 0 and 10 to 30 minutes", name, up, down)
	}
	for _, policy := range b.ScaleDown.Policies {
		if policy.Type != autoscaling.PodsScalingPolicy || policy.Value != 1 || policy.PeriodSeconds < 600 {
			t.Errorf("%s takes away %d within %d s, want one in 10 minutes", name, policy.Value, policy.PeriodSeconds)
		}
	}
}

func TestHorizontalPodAutoscalers(t *testing.T) {
	for _, name := range []string{"hpa-external.yaml", "hpa-object.yaml"} {
		object, _, err := strict(t).Decode(read(t, filepath.Join("deploy/autoscaling", name)), nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		hpa := object.(*autoscaling.HorizontalPodAutoscaler)
		checkBehavior(t, name, hpa.Spec.Behavior)
		if hpa.Spec.MinReplicas == nil || *hpa.Spec.MinReplicas < 2 || len(hpa.Spec.Metrics) != 1 {
			t.Fatalf("%s: %+v", name, hpa.Spec)
		}
		var metric string
		var target autoscaling.MetricTarget
		switch m := hpa.Spec.Metrics[0]; m.Type {
		case autoscaling.ExternalMetricSourceType:
			metric, target = m.External.Metric.Name, m.External.Target
		case autoscaling.ObjectMetricSourceType:
			metric, target = m.Object.Metric.Name, m.Object.Target
		}
		if metric != "headroom_replicas_target" || target.Type != autoscaling.AverageValueMetricType || target.AverageValue.String() != "1" {
			t.Errorf("%s scales on %q by %+v", name, metric, target)
		}
	}
}

// scaledObject is what the example uses of KEDA's ScaledObject (kedacore/keda,
// apis/keda/v1alpha1, 2.17).
type scaledObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec struct {
		ScaleTargetRef struct {
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
		PollingInterval int32 `json:"pollingInterval"`
		MinReplicaCount int32 `json:"minReplicaCount"`
		MaxReplicaCount int32 `json:"maxReplicaCount"`
		Fallback        struct {
			FailureThreshold int32  `json:"failureThreshold"`
			Replicas         int32  `json:"replicas"`
			Behavior         string `json:"behavior"`
		} `json:"fallback"`
		Advanced struct {
			HPA struct {
				Behavior *autoscaling.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
		Triggers []struct {
			Type       string            `json:"type"`
			MetricType string            `json:"metricType"`
			Metadata   map[string]string `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

// decodeStrictly reads YAML into a JSON-tagged type and refuses fields that it
// does not have.
func decodeStrictly(text []byte, into any) error {
	var document any
	if err := yaml.Unmarshal(text, &document); err != nil {
		return err
	}
	asJSON, err := json.Marshal(document)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

func TestScaledObject(t *testing.T) {
	var object scaledObject
	if err := decodeStrictly(read(t, "deploy/autoscaling/keda.yaml"), &object); err != nil {
		t.Fatal(err)
	}
	spec := object.Spec
	checkBehavior(t, "keda.yaml", spec.Advanced.HPA.Behavior)
	if spec.MinReplicaCount < 2 || spec.Fallback.Replicas < spec.MinReplicaCount || spec.Fallback.Replicas > spec.MaxReplicaCount || spec.Fallback.FailureThreshold < 1 {
		t.Errorf("the fallback %+v does not keep the floor of %d to %d", spec.Fallback, spec.MinReplicaCount, spec.MaxReplicaCount)
	}
	for _, trigger := range spec.Triggers {
		// KEDA's fallback is for this type alone, and an empty answer must be a failure.
		if trigger.Type != "prometheus" || trigger.MetricType != "AverageValue" || trigger.Metadata["ignoreNullValues"] != "false" {
			t.Errorf("the fallback does not hold for trigger %+v", trigger)
		}
		// One series of one pool: KEDA refuses an answer of several.
		if query := trigger.Metadata["query"]; !regexp.MustCompile(`^pool:[a-z0-9_:]+\{namespace="[a-z]+",pool="[a-z]+"\}$`).MatchString(query) {
			t.Errorf("the query is %s", query)
		}
	}
}

// adapterRule is what the example uses of a rule of prometheus-adapter.
type adapterRule struct {
	SeriesQuery string `json:"seriesQuery"`
	Resources   struct {
		Overrides map[string]struct {
			Resource string `json:"resource"`
		} `json:"overrides"`
	} `json:"resources"`
	Name struct {
		Matches string `json:"matches"`
		As      string `json:"as"`
	} `json:"name"`
	MetricsQuery string `json:"metricsQuery"`
}

// The adapter serves, under the name that the autoscalers ask for, the series
// that the rules record.
func TestPrometheusAdapter(t *testing.T) {
	var config struct {
		ExternalRules []adapterRule `json:"externalRules"`
		Rules         []adapterRule `json:"rules"`
	}
	if err := decodeStrictly(read(t, "deploy/autoscaling/prometheus-adapter.yaml"), &config); err != nil {
		t.Fatal(err)
	}
	if len(config.ExternalRules) != 1 || len(config.Rules) != 1 {
		t.Fatalf("%+v", config)
	}
	for _, rule := range slices.Concat(config.ExternalRules, config.Rules) {
		if rule.Name.As != "headroom_replicas_target" {
			t.Errorf("the name is %q", rule.Name.As)
		}
		if !strings.HasPrefix(rule.SeriesQuery, `{__name__="pool:headroom_replicas_target:max",`) {
			t.Errorf("it serves %s", rule.SeriesQuery)
		}
		for _, part := range []string{"<<.Series>>", "<<.LabelMatchers>>", "<<.GroupBy>>"} {
			if !strings.Contains(rule.MetricsQuery, part) {
				t.Errorf("the query %s has no %s", rule.MetricsQuery, part)
			}
		}
		if rule.Resources.Overrides["namespace"].Resource != "namespace" {
			t.Error("an HPA finds metrics of its namespace only")
		}
	}
}

// The decoder refuses what it is trusted to refuse.
func TestStrictDecodersSee(t *testing.T) {
	for name, document := range map[string]string{
		"PrometheusRule":          "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nspec:\n  groups: [{name: a, rules: [{alrt: A}]}]\n",
		"HorizontalPodAutoscaler": "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nspec:\n  behaviour: {}\n",
	} {
		if _, _, err := strict(t).Decode([]byte(document), nil, nil); err == nil {
			t.Errorf("%s with a misspelt field is accepted", name)
		}
	}
	if err := decodeStrictly([]byte("spec: {fallback: {replica: 3}}"), &scaledObject{}); err == nil {
		t.Error("a ScaledObject with a misspelt field is accepted")
	}
}
