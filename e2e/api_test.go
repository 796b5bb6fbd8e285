package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// headroom is /api/v1/headroom as a script reads it; what is not known is nil.
type headroom struct {
	Version int       `json:"version"`
	Time    time.Time `json:"time"`
	Engine  struct {
		URL     string `json:"url"`
		Type    string `json:"type"`
		Version string `json:"version"`
		State   string `json:"state"`
		Reason  string `json:"reason"`
	} `json:"engine"`
	Replicas []replica         `json:"replicas"`
	GPUs     []json.RawMessage `json:"gpus"`
}

type replica struct {
	ModelName         string              `json:"model_name"`
	Engine            string              `json:"engine"`
	EngineType        string              `json:"engine_type"`
	EngineVersion     string              `json:"engine_version"`
	State             string              `json:"state"`
	HeadroomRatio     *float64            `json:"headroom_ratio"`
	BindingConstraint *string             `json:"binding_constraint"`
	Zone              *string             `json:"zone"`
	LoadRatio         map[string]*float64 `json:"load_ratio"`
	Left              map[string]*float64 `json:"left"`
	Occupancy         struct {
		SequenceSlots occupancy `json:"sequence_slots"`
		TokenSlots    occupancy `json:"token_slots"`
	} `json:"occupancy"`
	Requests struct {
		Running *float64 `json:"running"`
		Waiting *float64 `json:"waiting"`
	} `json:"requests"`
	Rates   map[string]*float64 `json:"rates"`
	Curve   replicaCurve        `json:"curve"`
	Reasons []string            `json:"reasons"`
}

// replicaCurve is what the capacity curve says of a replica.
type replicaCurve struct {
	Valid          bool     `json:"valid"`
	WatermarkRatio *float64 `json:"watermark_ratio"`
	Correction     struct {
		Factor *float64 `json:"factor"`
	} `json:"correction"`
}

type occupancy struct {
	Used   *float64 `json:"used"`
	Total  *float64 `json:"total"`
	Ratio  *float64 `json:"ratio"`
	Source *string  `json:"source"`
}

// value is what a pointer points at, or the text "unknown" for printing.
func value[T any](p *T) any {
	if p == nil {
		return "unknown"
	}
	return *p
}

// known tells whether the state lets numbers be published.
func known(state string) bool { return state == "ok" || state == "idle" }

var client = &http.Client{Timeout: 5 * time.Second}

// get returns the body of a page that answers 200.
func get(url string) ([]byte, error) {
	resp, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s: %.200s", url, resp.Status, body)
	}
	return body, nil
}

func mustGet(t *testing.T, url string) []byte {
	t.Helper()
	body, err := get(url)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func getHeadroom(url string) (*headroom, error) {
	body, err := get(url + "/api/v1/headroom")
	if err != nil {
		return nil, err
	}
	return decodeHeadroom(body)
}

func decodeHeadroom(body []byte) (*headroom, error) {
	var h headroom
	if err := json.Unmarshal(body, &h); err != nil {
		return nil, fmt.Errorf("decoding headroom: %w in %s", err, body)
	}
	if h.Version != 1 {
		return nil, fmt.Errorf("version is %d, want 1", h.Version)
	}
	return &h, nil
}

// exposition is a parsed metrics page.
type exposition map[string]*dto.MetricFamily

func getMetrics(url string) (exposition, error) {
	body, err := get(url + "/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("parsing %s/metrics: %w", url, err)
	}
	return families, nil
}

// sum adds up the values of a family's series that carry all the labels
// given as name, value, ...; absent tells that there is none.
func (e exposition) sum(name string, labels ...string) (total float64, absent bool) {
	absent = true
	family := e[name]
	if family == nil {
		return 0, true
	}
	for _, m := range family.Metric {
		if !carries(m, labels) {
			continue
		}
		absent = false
		switch {
		case m.Gauge != nil:
			total += m.Gauge.GetValue()
		case m.Counter != nil:
			total += m.Counter.GetValue()
		case m.Untyped != nil:
			total += m.Untyped.GetValue()
		}
	}
	return total, absent
}

func carries(m *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		found := false
		for _, l := range m.Label {
			if l.GetName() == labels[i] && l.GetValue() == labels[i+1] {
				found = true
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// seriesOf counts the samples of a metrics page.
func seriesOf(page []byte) int {
	n := 0
	for line := range strings.Lines(string(page)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}

// headroomFamilies are the families that may exist only where headroom is known.
var headroomFamilies = []string{
	"headroom_ratio", "headroom_load_ratio", "headroom_requests_per_second",
	"headroom_prompt_tokens_per_second", "headroom_generation_tokens_per_second",
	"headroom_sequence_slots", "headroom_token_slots", "headroom_worst_rank_ratio",
	"headroom_all_ranks_requests_per_second", "headroom_all_ranks_sequence_slots", "headroom_all_ranks_token_slots",
	"headroom_engine_sequence_slot_occupancy_ratio", "headroom_engine_token_slot_occupancy_ratio",
	"headroom_engine_offered_requests_per_second", "headroom_bandwidth_saturation_ratio",
}

// publishesNoHeadroom returns an error when the page or the JSON tells a
// headroom, or a number that headroom is made of.
func publishesNoHeadroom(url string) error {
	m, err := getMetrics(url)
	if err != nil {
		return err
	}
	for _, name := range headroomFamilies {
		if family := m[name]; family != nil && len(family.Metric) > 0 {
			return fmt.Errorf("%s is published: %v", name, family.Metric[0])
		}
	}
	h, err := getHeadroom(url)
	if err != nil {
		return err
	}
	if known(h.Engine.State) {
		return fmt.Errorf("engine state is %s", h.Engine.State)
	}
	for _, r := range h.Replicas {
		if r.HeadroomRatio != nil {
			return fmt.Errorf("replica %q tells a headroom ratio of %v in state %s", r.Engine, *r.HeadroomRatio, r.State)
		}
		for constraint, ratio := range r.LoadRatio {
			if ratio != nil {
				return fmt.Errorf("replica %q tells a %s load ratio of %v in state %s", r.Engine, constraint, *ratio, r.State)
			}
		}
		if len(r.Reasons) == 0 {
			return errors.New("no reason is given for the unknown headroom")
		}
	}
	return nil
}
