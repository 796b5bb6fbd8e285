package alerts

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	amlabels "github.com/prometheus/alertmanager/pkg/labels"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// amConfig is what the example uses of an Alertmanager's configuration; any
// other field is taken for a mistake.
type amConfig struct {
	Route        amRoute `yaml:"route"`
	InhibitRules []struct {
		Source amMatchers        `yaml:"source_matchers"`
		Target amMatchers        `yaml:"target_matchers"`
		Equal  []model.LabelName `yaml:"equal"`
	} `yaml:"inhibit_rules"`
	Receivers []struct {
		Name     string `yaml:"name"`
		Webhooks []struct {
			URL      string `yaml:"url"`
			Resolved *bool  `yaml:"send_resolved"`
		} `yaml:"webhook_configs"`
	} `yaml:"receivers"`
}

type amRoute struct {
	Receiver       string         `yaml:"receiver"`
	Matchers       amMatchers     `yaml:"matchers"`
	GroupBy        []string       `yaml:"group_by"`
	GroupWait      model.Duration `yaml:"group_wait"`
	GroupInterval  model.Duration `yaml:"group_interval"`
	RepeatInterval model.Duration `yaml:"repeat_interval"`
	Routes         []amRoute      `yaml:"routes"`
}

type amMatchers struct{ amlabels.Matchers }

func (m *amMatchers) UnmarshalYAML(node *yaml.Node) error {
	var texts []string
	if err := node.Decode(&texts); err != nil {
		return err
	}
	for _, text := range texts {
		matcher, err := amlabels.ParseMatcher(text)
		if err != nil {
			return err
		}
		m.Matchers = append(m.Matchers, matcher)
	}
	return nil
}

func readAlertmanager(t *testing.T, path string) *amConfig {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(raw)))
	decoder.KnownFields(true)
	c := &amConfig{}
	if err := decoder.Decode(c); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return c
}

// receiver is where the first route that matches leads. The example's routes
// have no children of their own, and none goes on to the next.
func receiver(c *amConfig, alert model.LabelSet) string {
	for _, route := range c.Route.Routes {
		if route.Matchers.Matches(alert) {
			return route.Receiver
		}
	}
	return c.Route.Receiver
}

// mutes tells whether an inhibition rule mutes the target while the source fires.
func mutes(c *amConfig, source, target model.LabelSet) bool {
	for _, rule := range c.InhibitRules {
		if !rule.Source.Matches(source) || !rule.Target.Matches(target) {
			continue
		}
		if !slices.ContainsFunc(rule.Equal, func(name model.LabelName) bool {
			return source[name] != target[name]
		}) {
			return true
		}
	}
	return false
}

// By the example of an Alertmanager's configuration pages reach the pager, and
// a cause mutes what it explains.
func TestAlertmanagerExample(t *testing.T) {
	c := readAlertmanager(t, "../deploy/alertmanager/alertmanager.yml")
	_, alerting := ruleFiles(t)
	names := map[model.LabelValue]bool{}
	for _, f := range alerting {
		for _, r := range f.rules() {
			names[model.LabelValue(r.Alert)] = true
			alert := model.LabelSet{"alertname": model.LabelValue(r.Alert), "namespace": "chat"}
			for name, value := range r.Labels {
				alert[model.LabelName(name)] = model.LabelValue(value)
			}
			want := map[string]string{"page": "pager", "ticket": "tickets", "none": "watchdog"}[r.Labels["severity"]]
			if got := receiver(c, alert); got != want {
				t.Errorf("%s goes to %s, want %s", alert, got, want)
			}
			if mutes(c, alert, alert) {
				t.Errorf("%s mutes itself", alert)
			}
		}
	}
	for _, route := range c.Route.Routes {
		if len(route.Routes) > 0 {
			t.Errorf("the route to %s goes on, which this test does not follow", route.Receiver)
		}
	}

	alert := func(name, severity, pool, pod string) model.LabelSet {
		names[model.LabelValue(name)] = names[model.LabelValue(name)] // must be one of ours
		return model.LabelSet{"alertname": model.LabelValue(name), "severity": model.LabelValue(severity), "namespace": "chat", "pool": model.LabelValue(pool), "pod": model.LabelValue(pod)}
	}
	type muted struct {
		source, target model.LabelSet
		want           bool
	}
	for _, test := range []muted{
		{alert("HeadroomLow", "page", "a", ""), alert("HeadroomLow", "ticket", "a", ""), true},
		{alert("HeadroomLow", "ticket", "a", ""), alert("HeadroomLow", "page", "a", ""), false},
		{alert("HeadroomLow", "page", "a", ""), alert("HeadroomLow", "ticket", "b", ""), false},
		{alert("HeadroomLow", "page", "a", ""), alert("HeadroomSLOBurn", "page", "a", ""), false},
		{alert("HeadroomLow", "page", "a", ""), alert("HeadroomPredictedLost", "page", "a", ""), true},
		{alert("HeadroomLow", "page", "a", ""), alert("HeadroomQueueGrowing", "ticket", "a", "x"), true},
		{alert("HeadroomGPULost", "page", "a", "x"), alert("HeadroomEngineDown", "page", "a", "x"), true},
		{alert("HeadroomGPULost", "page", "a", "x"), alert("HeadroomEngineDown", "page", "a", "y"), false},
		{alert("HeadroomGPUThrottled", "page", "a", "x"), alert("HeadroomLostFast", "page", "a", "x"), true},
		{alert("HeadroomEngineDown", "page", "a", "x"), alert("HeadroomUnknown", "ticket", "a", "x"), true},
		{alert("HeadroomEngineDown", "page", "a", "x"), alert("HeadroomUnknown", "page", "a", ""), false},
		{alert("HeadroomExporterDown", "ticket", "a", "x"), alert("HeadroomUnknown", "ticket", "a", "x"), true},
		{alert("HeadroomExporterDown", "ticket", "a", "x"), alert("HeadroomUnknown", "page", "a", ""), false},
		{alert("HeadroomFleetRulesMissing", "ticket", "", ""), alert("HeadroomAbsent", "page", "a", ""), true},
		{alert("HeadroomCurveUncovered", "ticket", "a", "x"), alert("HeadroomCurveInvalid", "ticket", "a", "x"), true},
		{alert("HeadroomCurveInvalid", "ticket", "a", "x"), alert("HeadroomCurveUncovered", "ticket", "a", "x"), false},
	} {
		if got := mutes(c, test.source, test.target); got != test.want {
			t.Errorf("%s mutes %s: %v, want %v", test.source, test.target, got, test.want)
		}
	}
	for name, there := range names {
		if !there {
			t.Errorf("no alert %s", name)
		}
	}
	var receivers []string
	for _, r := range c.Receivers {
		receivers = append(receivers, r.Name)
	}
	if diff := cmp.Diff([]string{"pager", "tickets", "watchdog"}, receivers); diff != "" {
		t.Error(diff)
	}
}
