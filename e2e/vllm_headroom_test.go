package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// vllmHeadroom asks for the live load ratio on a real vLLM, which takes half an hour.
var vllmHeadroom = flag.Bool("vllm.headroom", false, "see how far the live load ratio is off on a real vLLM, for about 35 minutes of a quiet machine")

const (
	// vllmMixLoad is how long a mix is held at its knee: the window that a mix is seen in, and a minute.
	vllmMixLoad = 6 * time.Minute
	// vllmMixRead is the end of it, over which the ratio is looked at.
	vllmMixRead = time.Minute
)

// vllmMixes are shares of the load: what the curve is not probed with.
var vllmMixes = []map[string]float64{
	{"chat": 0.5, "writing": 0.5},
	{"chat": 1.0 / 3, "writing": 1.0 / 3, "reading": 1.0 / 3},
}

// TestHeadroomOnVLLM: a curve of three classes, then two mixes of them, each
// raised to the knee that a search finds of it, where the load ratio should be 1.
func TestHeadroomOnVLLM(t *testing.T) {
	if !*vllmHeadroom {
		t.Skip("the live load ratio on a real vLLM is judged with -args -vllm.headroom, see CONTRIBUTING.md")
	}
	if os.Getenv("E2E_VLLM_DIR") == "" || os.Getenv("E2E_VLLM_SERVE") == "" {
		t.Skip("no real vLLM to test against: set E2E_VLLM_DIR and E2E_VLLM_SERVE, see CONTRIBUTING.md")
	}
	address := freeAddress(t)
	v := startVLLM(t, address, "--max-num-seqs", "8", "--no-enable-prefix-caching")
	v.waitReady(t)

	search := func(name string, seed int, args ...string) string {
		s := newKneeSearch(t, v.url, append([]string{"--slo=ttft:p99:1s", "--seed=" + strconv.Itoa(seed)}, args...)...)
		begin := time.Now()
		p := s.toTheEnd(vllmSearchLimit)
		t.Logf("%s took %s\n%s", name, time.Since(begin).Round(time.Second), p.stdout.String())
		return s.curve
	}
	classes := map[string]string{"chat": "prompt=128,output=32", "writing": "prompt=32,output=128", "reading": "prompt=700,output=16"}
	var flags []string
	for _, class := range slices.Sorted(maps.Keys(classes)) {
		flags = append(flags, "--class="+class+":"+classes[class])
	}
	curveFile := search("the curve", 1, flags...)
	knees := kneesOf(t, curveFile)
	for i, mix := range vllmMixes {
		rate := 0.0
		for class, load := range mix {
			rate += load * knees[class].rate
		}
		name := fmt.Sprintf("mix %d", i+1)
		var weighted []string
		for _, class := range slices.Sorted(maps.Keys(mix)) {
			weighted = append(weighted, fmt.Sprintf("--class=%s:%s,weight=%.4f", class, classes[class], mix[class]*knees[class].rate/rate))
		}
		knee := mixKnee(t, search(name, 10+i, append(weighted, "--mix-only")...))

		s := serve(t, v.url, "--curve.file="+curveFile, "--gpu.nvml=off")
		p := start(t, nil, append([]string{"probe", "--engine.url=" + v.url, "--gpu.nvml=off", "--seed=" + strconv.Itoa(20+i),
			fmt.Sprintf("--rate=%.4f", knee.rate), "--slo=ttft:p99:1s", "--warmup=10s", "--duration=" + vllmMixLoad.String()}, weighted...)...)
		time.Sleep(vllmMixLoad + 10*time.Second - vllmMixRead)
		low, high, sum, n := math.Inf(1), math.Inf(-1), 0.0, 0.0
		var last replica
		for end := time.Now().Add(vllmMixRead); time.Now().Before(end); time.Sleep(2 * time.Second) {
			h, err := getHeadroom(s.url)
			if err != nil {
				t.Fatal(err)
			}
			last = onlyReplica(t, h)
			r := last.LoadRatio["curve"]
			if r == nil || !last.Curve.Valid {
				t.Errorf("%s: no load ratio of the curve: %q", name, last.Reasons)
				break
			}
			low, high, sum, n = min(low, *r), max(high, *r), sum+*r, n+1
		}
		if status := p.status(vllmMixLoad); status != 0 && status != 1 {
			t.Errorf("%s: the load ended with status %d: %s", name, status, lastLine(p))
		}
		t.Logf("%s at its knee of %.4g (%.4g to %.4g): load ratio %.3f (%.3f to %.3f in a minute), the engine %v times as slow as its curve; all constraints: %s\n%s",
			name, knee.rate, knee.low, knee.high, sum/n, low, high, value(last.Curve.Correction.Factor), loads(last.LoadRatio), p.stdout.String())
		if r := sum / n; !(r >= 0.85 && r <= 1.2) {
			t.Errorf("%s: load ratio %.3f at its knee, want 0.85 to 1.2", name, r)
		}
		s.kill()
	}
	v.kill()
}

// mixKnee is the knee of the only mix of a curve file.
func mixKnee(t *testing.T, path string) measuredKnee {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Mixes []curveStudy
	}
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Mixes) != 1 {
		t.Fatalf("%s has %d mixes, want 1", path, len(c.Mixes))
	}
	k, known := c.Mixes[0].measured()
	if !known {
		t.Fatalf("%s: the mix has no knee: %s", path, c.Mixes[0].Status)
	}
	return k
}
