package web

import (
	"crypto/sha256"
	"encoding/base64"
	"regexp"
	"strings"
	"testing"
)

// The policy admits exactly the script and the style that the page carries,
// and the page asks nobody else for anything.
func TestPageIsSelfContained(t *testing.T) {
	r := get(handlerOf(t, &fixedSource{}), "GET", "/")
	page, policy := bodyOf(t, r), r.Header.Get("Content-Security-Policy")
	for element, directive := range map[string]string{"script": "script-src", "style": "style-src"} {
		found := regexp.MustCompile(`(?s)<`+element+`>(.*?)</`+element+`>`).FindAllStringSubmatch(page, -1)
		if len(found) != 1 {
			t.Fatalf("%d %s elements, want 1", len(found), element)
		}
		if len(found[0][1]) < 1000 {
			t.Errorf("the %s is %d bytes long: a placeholder was not filled", element, len(found[0][1]))
		}
		sum := sha256.Sum256([]byte(found[0][1]))
		want := directive + " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
		if !strings.Contains(policy, want) {
			t.Errorf("the policy %q lacks %q", policy, want)
		}
	}
	for _, u := range regexp.MustCompile(`https?://[^\s'"<)]+`).FindAllString(page, -1) {
		if u != "http://www.w3.org/2000/svg" { // a name, not an address
			t.Errorf("the page names %s", u)
		}
	}
	if hit := regexp.MustCompile(`\sstyle="|\son[a-z]+="|<link rel="stylesheet"|\ssrc="|@import|url\(`).FindString(page); hit != "" {
		t.Errorf("the page has %q, which its policy forbids", hit)
	}
	if !strings.Contains(page, "headroom_exporter 1.2.3 &lt;test&gt;") {
		t.Error("the version is not there, or not escaped")
	}
}

// Every element that the script looks up is in the document.
func TestPageHasWhatItsScriptNeeds(t *testing.T) {
	page := bodyOf(t, get(handlerOf(t, &fixedSource{}), "GET", "/"))
	names := regexp.MustCompile(`byId\("([^"]+)"\)`).FindAllStringSubmatch(page, -1)
	if len(names) < 10 {
		t.Fatalf("only %d look-ups found", len(names))
	}
	for _, n := range names {
		if strings.Count(page, ` id="`+n[1]+`"`) != 1 {
			t.Errorf("the element %q is there %d times, want once", n[1], strings.Count(page, ` id="`+n[1]+`"`))
		}
	}
}
