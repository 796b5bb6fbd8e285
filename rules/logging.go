package rules

import (
	"context"
	"log/slog"
)

// warnings passes on warnings and errors only: Prometheus' store tells every
// step of its housekeeping, which is nobody's interest here.
type warnings struct{ slog.Handler }

func warningsOf(logger *slog.Logger) *slog.Logger {
	return slog.New(warnings{logger.Handler()})
}

func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs)}
}

func (w warnings) WithGroup(name string) slog.Handler { return warnings{w.Handler.WithGroup(name)} }
