package curve

import _ "embed"

// JSONSchema is the file's form as a JSON Schema of draft 2020-12. What Encode
// writes fits it; Validate checks more, such as that intervals are ordered.
//
//go:embed capacity-curve-v1.schema.json
var JSONSchema []byte
