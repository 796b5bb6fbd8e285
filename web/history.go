package web

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/sidecar"
)

const (
	defaultHistorySeconds = 900
	maxHistorySeconds     = 7200
	// maxHistoryPoints is how many points of a replica are answered: a curve on a screen shows no more.
	maxHistoryPoints = 300
)

// historyDocument is the answer of /api/v1/history: for each replica one
// array per quantity, all of the length of unix_milliseconds.
type historyDocument struct {
	Version  int              `json:"version"`
	Time     time.Time        `json:"time"`
	Seconds  int              `json:"seconds"`
	Replicas []historyColumns `json:"replicas"`
}

type historyColumns struct {
	ModelName            string            `json:"model_name"`
	Engine               string            `json:"engine"`
	UnixMilliseconds     []int64           `json:"unix_milliseconds"`
	State                []string          `json:"state"`
	LoadRatio            column            `json:"load_ratio"`
	LoadRatios           map[string]column `json:"load_ratios"`
	SequenceSlotRatio    column            `json:"sequence_slot_occupancy_ratio"`
	TokenSlotRatio       column            `json:"token_slot_occupancy_ratio"`
	RequestsRunning      column            `json:"requests_running"`
	RequestsWaiting      column            `json:"requests_waiting"`
	OfferedRequests      column            `json:"offered_requests_per_second"`
	GenerationTokens     column            `json:"generation_tokens_per_second"`
	ComputedPromptTokens column            `json:"computed_prompt_tokens_per_second"`
	BandwidthSaturation  column            `json:"bandwidth_saturation_ratio"`
	TimeToFirstToken     column            `json:"time_to_first_token_seconds"`
	InterTokenLatency    column            `json:"inter_token_latency_seconds"`
}

// column is one quantity over time; a point that is not known is null.
type column []float64

// MarshalJSON implements json.Marshaler.
func (c column) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 8*len(c)+2)
	b = append(b, '[')
	for i, v := range c {
		if i > 0 {
			b = append(b, ',')
		}
		b = number(v).append(b)
	}
	return append(b, ']'), nil
}

func (s *server) serveHistory(w http.ResponseWriter, r *http.Request) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		s.fail(w, http.StatusBadRequest, fmt.Sprintf("the query cannot be read: %v", err))
		return
	}
	length := defaultHistorySeconds
	if text := query.Get("seconds"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxHistorySeconds {
			s.fail(w, http.StatusBadRequest, fmt.Sprintf("seconds=%q is not a whole number from 1 to %d", text, maxHistorySeconds))
			return
		}
		length = n
	}
	snapshot := s.Source.Snapshot()
	if snapshot == nil {
		s.fail(w, http.StatusServiceUnavailable, noReadingYet)
		return
	}
	// The window ends with the newest snapshot, so that a loop that stands still does not empty it.
	since := snapshot.At.Add(-time.Duration(length) * time.Second)
	d := historyDocument{Version: documentVersion, Time: snapshot.At.UTC().Truncate(time.Millisecond), Seconds: length, Replicas: []historyColumns{}}
	for i := range snapshot.Replicas {
		replica := &snapshot.Replicas[i]
		if query.Has("model_name") && query.Get("model_name") != replica.ModelName || query.Has("engine") && query.Get("engine") != replica.Engine {
			continue
		}
		points := downsample(s.Source.History(replica.ModelName, replica.Engine, since), time.Duration(length)*time.Second, maxHistoryPoints)
		d.Replicas = append(d.Replicas, newHistoryColumns(replica.ModelName, replica.Engine, points))
	}
	s.answer(w, http.StatusOK, d)
}

// downsample keeps at most limit of the points that lie in a window of the
// given length: of each slice of time the one with the largest load ratio,
// whole, so that peaks stay and every number of a point is of one moment.
// Slices lie at fixed times, so that a curve does not flicker as it moves on.
func downsample(points []sidecar.HistoryPoint, length time.Duration, limit int) []sidecar.HistoryPoint {
	if len(points) <= limit {
		return points
	}
	// A window touches one slice more than fits into it.
	slice := length.Nanoseconds()/int64(limit-1) + 1
	kept := make([]sidecar.HistoryPoint, 0, limit)
	current := int64(math.MinInt64)
	for _, p := range points {
		at := p.At.UnixNano() / slice
		if at != current || len(kept) == 0 {
			kept, current = append(kept, p), at
			continue
		}
		if best := &kept[len(kept)-1]; math.IsNaN(best.LoadRatio) || p.LoadRatio > best.LoadRatio {
			*best = p
		}
	}
	return kept
}

func newHistoryColumns(modelName, engine string, points []sidecar.HistoryPoint) historyColumns {
	take := func(value func(*sidecar.HistoryPoint) float64) column {
		c := make(column, len(points))
		for i := range points {
			c[i] = value(&points[i])
		}
		return c
	}
	type point = sidecar.HistoryPoint
	h := historyColumns{
		ModelName: modelName, Engine: engine,
		UnixMilliseconds:     make([]int64, len(points)),
		State:                make([]string, len(points)),
		LoadRatio:            take(func(p *point) float64 { return p.LoadRatio }),
		LoadRatios:           make(map[string]column, capacity.NumConstraints),
		SequenceSlotRatio:    take(func(p *point) float64 { return p.SequenceSlotRatio }),
		TokenSlotRatio:       take(func(p *point) float64 { return p.TokenSlotRatio }),
		RequestsRunning:      take(func(p *point) float64 { return p.RequestsRunning }),
		RequestsWaiting:      take(func(p *point) float64 { return p.RequestsWaiting }),
		OfferedRequests:      take(func(p *point) float64 { return p.OfferedRequests }),
		GenerationTokens:     take(func(p *point) float64 { return p.GenerationTokens }),
		ComputedPromptTokens: take(func(p *point) float64 { return p.ComputedPromptTokens }),
		BandwidthSaturation:  take(func(p *point) float64 { return p.BandwidthSaturation }),
		TimeToFirstToken:     take(func(p *point) float64 { return p.TimeToFirstToken }),
		InterTokenLatency:    take(func(p *point) float64 { return p.InterTokenLatency }),
	}
	for i := range points {
		h.UnixMilliseconds[i] = points[i].At.UnixMilli()
		h.State[i] = string(points[i].State)
	}
	for _, c := range capacity.Constraints() {
		h.LoadRatios[c.String()] = take(func(p *point) float64 { return p.LoadRatios[c] })
	}
	return h
}
