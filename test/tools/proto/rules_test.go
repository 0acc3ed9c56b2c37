package main

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sound is a file without a mistake, in shop/v1/shop.proto.
const sound = `syntax = "proto3";

package shop.v1;

import "google/protobuf/timestamp.proto";

option go_package = "example.com/shop/v1;shopv1";

service ShopService {
  rpc ListGoods(ListGoodsRequest) returns (ListGoodsResponse);
}

message ListGoodsRequest {
  optional PCIBusState state = 1;
  oneof order {
    string name = 2;
  }
}

message ListGoodsResponse {
  map<string, int32> goods = 1;
  google.protobuf.Timestamp since_last_1 = 2;
}

enum PCIBusState {
  PCI_BUS_STATE_UNSPECIFIED = 0;
  PCI_BUS_STATE_UP_2 = 1;
}
`

// findings returns the rules that a set of files violates, sorted, each once, or what the compiler says.
func findings(t *testing.T, files map[string]string) (rules []string) {
	t.Helper()
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	compiled, err := compile(names, func(name string) (io.ReadCloser, error) {
		text, there := files[name]
		if !there {
			return nil, os.ErrNotExist
		}
		return io.NopCloser(strings.NewReader(text)), nil
	})
	if err != nil {
		return []string{err.Error()}
	}
	for _, line := range check(compiled) {
		parts := regexp.MustCompile(`^[a-z0-9_/.A-Z]+:\d+: ([A-Z_]+): .`).FindStringSubmatch(line)
		if parts == nil {
			t.Errorf("%q is not FILE:LINE: RULE: text", line)
			continue
		}
		rules = append(rules, parts[1])
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}

const shop = "shop/v1/shop.proto"

func TestCheck_EachRule_FindsItsMistake(t *testing.T) {
	if found := findings(t, map[string]string{shop: sound}); len(found) > 0 {
		t.Errorf("a sound file: %q", found)
	}
	for _, c := range []struct{ rule, before, after string }{
		{"ENUM_NO_ALLOW_ALIAS", "enum PCIBusState {", "enum PCIBusState {\n  option allow_alias = true;\n  PCI_BUS_STATE_SAME_UNSPECIFIED = 0;"},
		{"ENUM_PASCAL_CASE", "PCIBusState", "PCI_BUS_STATE"},
		{"ENUM_VALUE_PREFIX", "PCI_BUS_STATE_UP_2", "PCIBUS_STATE_UP"},
		{"ENUM_VALUE_UPPER_SNAKE_CASE", "PCI_BUS_STATE_UP_2", "PCI_BUS_STATE_up"},
		{"ENUM_ZERO_VALUE_SUFFIX", "PCI_BUS_STATE_UNSPECIFIED", "PCI_BUS_STATE_NONE"},
		{"FIELD_LOWER_SNAKE_CASE", "PCIBusState state", "PCIBusState busState"},
		{"FIELD_LOWER_SNAKE_CASE", "> goods", "> Goods"},
		{"IMPORT_NO_PUBLIC", "import ", "import public "},
		{"IMPORT_NO_WEAK", "import ", "import weak "},
		{"MESSAGE_PASCAL_CASE", "message ListGoodsRequest {", "message listed {}\nmessage ListGoodsRequest {"},
		{"MESSAGE_PASCAL_CASE", "message ListGoodsRequest {", "message ListGoodsRequest {\n  message List_Entry {}"},
		{"ONEOF_LOWER_SNAKE_CASE", "oneof order", "oneof Order"},
		{"PACKAGE_DEFINED", "package shop.v1;", ""},
		{"PACKAGE_DIRECTORY_MATCH", "package shop.v1;", "package store.v1;"},
		{"PACKAGE_LOWER_SNAKE_CASE", "package shop.v1;", "package Shop.v1;"},
		{"RPC_PASCAL_CASE", "rpc ListGoods(", "rpc listGoods("},
		{"RPC_REQUEST_RESPONSE_UNIQUE", "rpc ", "rpc Again(ListGoodsRequest) returns (ListGoodsResponse);\n  rpc "},
		{"RPC_REQUEST_RESPONSE_UNIQUE", "returns (ListGoodsResponse)", "returns (ListGoodsRequest)"},
		{"RPC_REQUEST_STANDARD_NAME", "ListGoodsRequest", "ListGoodsQuery"},
		{"RPC_RESPONSE_STANDARD_NAME", "ListGoodsResponse", "ListGoodsAnswer"},
		{"SERVICE_PASCAL_CASE", "ShopService", "Shop_Service"},
		{"SERVICE_SUFFIX", "ShopService", "Shop"},
		{`import "google/protobuf/timestamp.proto" not used`, "  google.protobuf.Timestamp since_last_1 = 2;\n", ""},
		{"no syntax specified", "syntax = \"proto3\";\n", ""},
	} {
		if found := findings(t, map[string]string{shop: strings.ReplaceAll(sound, c.before, c.after)}); !slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, c.rule) }) {
			t.Errorf("%s: %q for %q: found %q", c.rule, c.after, c.before, found)
		}
	}
	second := strings.NewReplacer("Shop", "Other", "Goods", "Other", "PCIBusState", "Other", "PCI_BUS_STATE", "OTHER").Replace(sound)
	proto2 := "syntax = \"proto2\";\npackage shop.v1;\noption go_package = \"example.com/shop/v1;shopv1\";\n"
	for _, c := range []struct{ rule, name, text string }{
		{"", "shop/v1/other.proto", second},
		{"FILE_LOWER_SNAKE_CASE", "shop/v1/Other.proto", second},
		{"FIELD_NOT_REQUIRED", "shop/v1/other.proto", proto2 + "message M { required string name = 1; }\n"},
		{"ENUM_FIRST_VALUE_ZERO", "shop/v1/other.proto", proto2 + "enum E { E_ONE = 1; }\n"},
		{"DIRECTORY_SAME_PACKAGE", "shop/v1/other.proto", strings.ReplaceAll(second, "package shop.v1", "package other.v1")},
		{"PACKAGE_SAME_DIRECTORY", "other/v1/other.proto", second},
		{"PACKAGE_VERSION_SUFFIX", "shop/other.proto", strings.ReplaceAll(second, "package shop.v1", "package shop")},
		{"PACKAGE_VERSION_SUFFIX", "shop/v0/other.proto", strings.ReplaceAll(second, "package shop.v1", "package shop.v0")},
		{"PACKAGE_SAME_GO_PACKAGE", "shop/v1/other.proto", strings.ReplaceAll(second, "shopv1", "otherv1")},
		{"PACKAGE_SAME_CSHARP_NAMESPACE", "shop/v1/other.proto", second + "option csharp_namespace = \"Other\";\n"},
		{"PACKAGE_SAME_JAVA_MULTIPLE_FILES", "shop/v1/other.proto", second + "option java_multiple_files = true;\n"},
		{"PACKAGE_SAME_JAVA_PACKAGE", "shop/v1/other.proto", second + "option java_package = \"other\";\n"},
		{"PACKAGE_SAME_PHP_NAMESPACE", "shop/v1/other.proto", second + "option php_namespace = \"Other\";\n"},
		{"PACKAGE_SAME_RUBY_PACKAGE", "shop/v1/other.proto", second + "option ruby_package = \"Other\";\n"},
		{"PACKAGE_SAME_SWIFT_PREFIX", "shop/v1/other.proto", second + "option swift_prefix = \"Other\";\n"},
	} {
		found := findings(t, map[string]string{shop: sound, c.name: c.text})
		if c.rule == "" && len(found) > 0 || c.rule != "" && !slices.Contains(found, c.rule) {
			t.Errorf("%s: %s: found %q", c.rule, c.name, found)
		}
	}
}
