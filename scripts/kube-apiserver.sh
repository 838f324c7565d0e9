#!/bin/sh
# Builds kube-apiserver from its Go modules into target/tools/bin, and unpacks Debian's etcd. Does nothing where both are there.
# The first build compiles all of Kubernetes' API: ten minutes of two busy cores (docs/decisions/0033-kubernetes-tests.md).
set -eu
cd "$(dirname "$0")/.."

version=v1.36.3
# Kubernetes' own go.mod names its parts as v0.0.0, to be found beside it; they are published as v0.X.
parts=v0.${version#v1.}

scripts/debian-package.sh etcd=etcd-server
built=target/tools/kube-apiserver
if [ "$(cat $built/version 2>/dev/null)" = "$version" ] && [ -x target/tools/bin/kube-apiserver ]; then
    exit 0
fi
if ! command -v go >/dev/null 2>&1; then
    echo "kube-apiserver: Go is missing: the chart is not tested on an API server" >&2
    exit 0
fi
mkdir -p $built target/tools/bin
bin=$PWD/target/tools/bin
cd $built
own=$(go mod download -json k8s.io/kubernetes@$version | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
{
    echo 'module warmpath.test/kube-apiserver'
    sed -n 's/^go .*/&/p' "$own"
    echo "require k8s.io/kubernetes $version"
    sed -n "s/^\t\(k8s.io\/[a-z-]*\) v0\.0\.0\( .*\)\{0,1\}$/replace \1 => \1 $parts/p" "$own"
} >go.mod
printf 'package main\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver/app"\n\nfunc main() {}\n' >main.go
# helm compares the server's version with the one that a chart requires.
minor=${version#v1.}
say=k8s.io/component-base/version
flags="-s -w -X $say.gitVersion=$version -X $say.gitMajor=1 -X $say.gitMinor=${minor%%.*}"
GOFLAGS='-mod=mod -buildvcs=false' go build -ldflags "$flags" -o "$bin/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
echo "$version" >version
