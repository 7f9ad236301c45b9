// The UIDs that a Go kubelet gives to static pods, to compare ours with, and what they are hashes of.
//
//	go run ./staticuid layout >../../src/pykubelet/api/pod_layout.json
//	go run ./staticuid NODE PATH <MANIFEST
//
// The first prints the fields of a Pod as Kubernetes' programs have it in memory, type by type. The second prints the
// UID of the pod that a file of that path holds on that node.
package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/utils/dump"
)

// leaves are structs whose insides are not described: they are told apart by hand, or are never filled.
var leaves = map[string]bool{
	"v1.Time": true, "resource.Quantity": true, "intstr.IntOrString": true, "v1.ManagedFieldsEntry": true,
}

func describe(kind reflect.Type, found map[string][]string) {
	switch kind.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		describe(kind.Elem(), found)
	case reflect.Struct:
		name := kind.String()
		if _, known := found[name]; known || leaves[name] {
			return
		}
		fields := []string{}
		found[name] = fields
		for index := range kind.NumField() {
			field := kind.Field(index)
			mark := ""
			if field.Anonymous {
				mark = "+"
			}
			fields = append(fields, mark+field.Name+" "+field.Type.String())
			if name != "core.PodStatus" { // empty in a manifest
				describe(field.Type, found)
			}
		}
		found[name] = fields
	}
}

func uid(node, path string) (string, error) {
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		return "", err
	}
	if data, err = yaml.ToJSON(data); err != nil {
		return "", err
	}
	object, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), data)
	if err != nil {
		return "", err
	}
	text := dump.ForHash(object)
	if os.Getenv("DUMP") != "" {
		fmt.Fprintln(os.Stderr, text)
	}
	hash := fnv.New128a()
	fmt.Fprintf(hash, "%vhost:%sfile:%s", text, node, path)
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "layout" {
		found := map[string][]string{}
		describe(reflect.TypeFor[core.Pod](), found)
		text, _ := json.MarshalIndent(found, "", " ")
		fmt.Println(string(text))
		return
	}
	found, err := uid(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(found)
}
