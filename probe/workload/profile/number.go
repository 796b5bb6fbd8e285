package profile

import (
	"math"
	"strconv"
	"strings"
)

// number writes a value in few characters.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case a >= 1e6:
		return significant(v/1e6) + "M"
	case a >= 1e3:
		return significant(v/1e3) + "k"
	case a >= 1:
		return significant(v)
	case a >= 0.1 || a == 0:
		return trim(v, 2)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// significant writes three digits of a value from 1 on.
func significant(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95:
		return trim(v, 0)
	case a >= 9.995:
		return trim(v, 1)
	}
	return trim(v, 2)
}

func trim(v float64, digits int) string {
	s := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}
