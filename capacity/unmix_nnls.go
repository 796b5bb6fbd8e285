package capacity

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
)

// Of columns scaled to length 1: a new column must stand out of those in use by
// nnlsIndependent, and the gradient must exceed nnlsGradient of the right side.
const (
	nnlsIndependent = 1e-8
	nnlsGradient    = 1e-12
)

// NNLS is the x >= 0 that makes |a x - b| smallest, with the rows of a (Lawson
// and Hanson, Solving Least Squares Problems, 1974, chapter 23). The same input
// gives the same x. The scale of a column does not matter: columns are scaled
// to the same length first. A column that is zero, or that the columns already
// in use make up, keeps an x of 0: such an x is not told apart, which is not the
// same as being known to be 0. It is nil when the dimensions do not fit, or an
// entry is no finite number.
func NNLS(rows [][]float64, b []float64) []float64 {
	if len(rows) == 0 || len(rows) != len(b) {
		return nil
	}
	cols := len(rows[0])
	s := nnls{norms: make([]float64, cols), b: b, right: floats.Norm(b, 2), x: make([]float64, cols)}
	finite := !math.IsNaN(s.right) && !math.IsInf(s.right, 0)
	for j := range cols {
		column := make([]float64, len(rows))
		for i, r := range rows {
			if len(r) != cols {
				return nil
			}
			column[i] = r[j]
		}
		s.norms[j] = floats.Norm(column, 2)
		finite = finite && !math.IsNaN(s.norms[j]) && !math.IsInf(s.norms[j], 0)
		if s.norms[j] > 0 {
			floats.Scale(1/s.norms[j], column)
		}
		s.columns = append(s.columns, column)
	}
	if !finite {
		return nil
	}
	s.solve()
	for j, norm := range s.norms {
		if norm > 0 {
			s.x[j] /= norm
		}
	}
	return s.x
}

// nnls is a problem on its way: the unit columns, their lengths before that,
// and the solution with the columns in use.
type nnls struct {
	columns [][]float64
	norms   []float64
	b       []float64
	right   float64
	x       []float64
	used    []int
}

func (s *nnls) solve() {
	// Each round lowers the residual with another set of columns, so there is an
	// end; the bound keeps rounding from going in circles.
	for range 10 * len(s.columns) {
		z := s.enter()
		if z == nil {
			return
		}
		// Go towards the solution of the columns in use, as far as none falls
		// below 0, and drop those that would.
		for len(z) > 0 && floats.Min(z) <= 0 {
			step, at := 1.0, -1
			for i, j := range s.used {
				if z[i] > 0 {
					continue
				}
				if part := s.x[j] / (s.x[j] - z[i]); at < 0 || part < step {
					step, at = part, j
				}
			}
			for i, j := range s.used {
				s.x[j] = max(0, s.x[j]+step*(z[i]-s.x[j]))
			}
			s.x[at] = 0
			s.used = slices.DeleteFunc(s.used, func(j int) bool { return s.x[j] == 0 })
			z = s.project(s.used, s.b)
		}
		for i, j := range s.used {
			s.x[j] = z[i]
		}
	}
}

// enter takes the column into use along which the residual falls most, and
// returns the solution of those in use; nil when none is left that helps.
func (s *nnls) enter() []float64 {
	if len(s.columns) == 0 || len(s.used) == len(s.b) {
		return nil
	}
	rest := slices.Clone(s.b)
	for j, x := range s.x {
		floats.AddScaled(rest, -x, s.columns[j])
	}
	gradient := make([]float64, len(s.columns))
	for j, column := range s.columns {
		if s.norms[j] > 0 && !slices.Contains(s.used, j) {
			gradient[j] = floats.Dot(column, rest)
		}
	}
	for {
		j := floats.MaxIdx(gradient)
		if gradient[j] <= nnlsGradient*s.right {
			return nil
		}
		gradient[j] = 0
		if !s.independent(j) {
			continue
		}
		// A column whose own part is not positive would leave again at once.
		tried := append(slices.Clone(s.used), j)
		if z := s.project(tried, s.b); z[len(z)-1] > 0 {
			s.used = tried
			return z
		}
	}
}

// independent tells whether a column is more than a sum of those in use.
func (s *nnls) independent(j int) bool {
	rest := slices.Clone(s.columns[j])
	for i, part := range s.project(s.used, rest) {
		floats.AddScaled(rest, -part, s.columns[s.used[i]])
	}
	return floats.Norm(rest, 2) > nnlsIndependent
}

// project is the solution of least squares with some of the columns.
func (s *nnls) project(columns []int, b []float64) []float64 {
	if len(columns) == 0 {
		return nil
	}
	m := mat.NewDense(len(b), len(columns), nil)
	for i, j := range columns {
		m.SetCol(i, s.columns[j])
	}
	var qr mat.QR
	qr.Factorize(m)
	var z mat.VecDense
	// The columns are independent, so that there is a solution.
	_ = qr.SolveVecTo(&z, false, mat.NewVecDense(len(b), slices.Clone(b)))
	return z.RawVector().Data
}
