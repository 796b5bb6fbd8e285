package deploy
import (
 _ "github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
)
