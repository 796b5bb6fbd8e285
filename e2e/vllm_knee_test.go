package e2e

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"
)

// vllmKnee asks for the searches on a real vLLM, which take most of an hour.
var vllmKnee = flag.Bool("vllm.knee", false, "search the knees of a real vLLM three times, for about 45 minutes of a quiet machine")

// vllmSearchLimit is how long a quick search of three classes may take; it is meant to take less than 15 minutes.
const vllmSearchLimit = 25 * time.Minute

// vllmKneeClasses are short, long in output and long in input.
var vllmKneeClasses = []string{"--class=chat:prompt=128,output=32", "--class=writing:prompt=32,output=256", "--class=reading:prompt=700,output=16"}

// measuredKnee is what a curve says of a class under Poisson arrivals.
type measuredKnee struct {
	rate, low, high, safe float64
	status                string
}

// curveStudy is a study in a curve file.
type curveStudy struct {
	Safe   *float64 `json:"safe_requests_per_second"`
	Status string
	Knee   *struct {
		Rate *float64 `json:"requests_per_second"`
		Low  *float64
		High *float64
	}
}

// measured is its knee; known is false when it has none.
func (s curveStudy) measured() (k measuredKnee, known bool) {
	if s.Knee == nil || s.Knee.Rate == nil || s.Knee.Low == nil || s.Knee.High == nil || s.Safe == nil {
		return k, false
	}
	return measuredKnee{*s.Knee.Rate, *s.Knee.Low, *s.Knee.High, *s.Safe, s.Status}, true
}

// kneesOf reads the knees of a curve file by class.
func kneesOf(t *testing.T, path string) map[string]measuredKnee {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Classes []struct {
			Name    string
			Studies []curveStudy
		}
	}
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	knees := map[string]measuredKnee{}
	for _, class := range c.Classes {
		if len(class.Studies) == 0 {
			t.Fatalf("%s: class %s has no study", path, class.Name)
		}
		k, known := class.Studies[0].measured()
		if !known {
			t.Fatalf("%s: class %s has no knee: %s", path, class.Name, class.Studies[0].Status)
		}
		knees[class.Name] = k
	}
	return knees
}

// TestKneeOnVLLM: the knees of a real engine are found twice alike, and the
// release gate and the check notice an engine with half the slots.
func TestKneeOnVLLM(t *testing.T) {
	if !*vllmKnee {
		t.Skip("searches on a real vLLM are run with -args -vllm.knee, see CONTRIBUTING.md")
	}
	if os.Getenv("E2E_VLLM_DIR") == "" || os.Getenv("E2E_VLLM_SERVE") == "" {
		t.Skip("no real vLLM to test against: set E2E_VLLM_DIR and E2E_VLLM_SERVE, see CONTRIBUTING.md")
	}
	address := freeAddress(t)
	// search runs a quick search of all classes and returns its curve file.
	search := func(name, seed string) string {
		s := newKneeSearch(t, "http://"+address, append([]string{"--slo=ttft:p99:1s", "--seed=" + seed}, vllmKneeClasses...)...)
		begin := time.Now()
		p := s.begin()
		if status := p.status(vllmSearchLimit); status != 0 {
			t.Fatalf("%s: status %d: %s", name, status, lastLine(p))
		}
		t.Logf("%s took %s\n%s", name, time.Since(begin).Round(time.Second), p.stdout.String())
		return s.curve
	}
	command := func(want int, args ...string) string {
		p, status := runToEnd(t, nil, append([]string{"curve"}, args...)...)
		said := p.stdout.String() + p.stderr.String()
		t.Logf("curve %s: status %d\n%s", args[0], status, said)
		if status != want {
			t.Errorf("curve %s: status %d, want %d", args[0], status, want)
		}
		return said
	}

	v, whole := startSearchedVLLM(t, address, 8)
	first := search("the first search", "1")
	second := search("the second search", "2")
	was, is := kneesOf(t, first), kneesOf(t, second)
	for class, a := range was {
		b := is[class]
		t.Logf("class %s: knee %.3g (%.3g to %.3g), then %.3g (%.3g to %.3g); safe %.3g, then %.3g",
			class, a.rate, a.low, a.high, b.rate, b.low, b.high, a.safe, b.safe)
		if b.high < a.low || b.low > a.high {
			t.Errorf("class %s: the second knee's interval does not meet the first one's", class)
		}
	}
	command(0, "compare", first, second)
	command(0, "check", first, "--engine.url=http://"+address)

	v.kill()
	v, half := startSearchedVLLM(t, address, 4)
	third := search("half the slots", "3")
	if said := command(1, "compare", first, third); !strings.Contains(said, "max_num_seqs "+whole+" -> "+half) || !strings.Contains(said, "class ") {
		t.Error("the comparison does not name the class and max_num_seqs")
	}
	if said := command(1, "check", first, "--engine.url=http://"+address); !strings.Contains(said, "max_num_seqs was "+whole+", is "+half) {
		t.Error("the check does not name max_num_seqs")
	}
	v.kill()
}
