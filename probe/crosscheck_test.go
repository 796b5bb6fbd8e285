package probe

import "testing"

// TestTTFTCrossCheck: the engine's TTFT may be shorter by what its front end
// takes, and a little longer for its clock's sake; more is worth a word.
func TestTTFTCrossCheck(t *testing.T) {
	for _, test := range []struct {
		name           string
		engine, client Value
		differ         bool
	}{
		{"a real vLLM on an idle machine", 0.027, 0.032, false},
		{"more than a front end takes", 0.027, 0.040, true},
		{"a share of a long TTFT", 1, 1.109, false},
		{"more than a share", 1, 1.111, true},
		{"shorter at the client", 0.030, 0.0255, false},
		{"so much shorter that one of them is wrong", 0.030, 0.0245, true},
		{"shorter by a share", 1, 0.901, false},
		{"shorter by more than a share", 1, 0.899, true},
	} {
		s := EngineSummary{Readings: 2, TTFTCount: 100, ClientTTFTCount: 100, TTFTMean: test.engine, ClientTTFTMean: test.client}
		said := ""
		say := func(code, _ string, _ ...any) { said += code }
		s.judge(&Point{}, say, say)
		want := ""
		if test.differ {
			want = FaultCrossCheck
		}
		if said != want {
			t.Errorf("%s: %q, want %q", test.name, said, want)
		}
	}
}
