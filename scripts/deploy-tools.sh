#!/bin/sh
# Builds from their Go modules the programs that check helm/, deploy/ and .github/: helm, helm-docs, kubeconform and
# actionlint in target/tools/bin, and the schemas of Kubernetes' and its extensions' kinds in target/tools/schemas;
# promtool comes from Debian. Does nothing if all is up to date. Without Go it says so, and the tests that need a
# missing program are skipped. Called by `make test` and by these tests.
set -eu
cd "$(dirname "$0")/.."

helm=helm.sh/helm/v4/cmd/helm@v4.3.1
helm_docs=github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2
kubeconform=github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
actionlint=github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
# Each with the folder of its schemas: OpenAPI of Kubernetes' own kinds, definitions of the others.
schemas='k8s.io/kubernetes@v1.36.3/api/openapi-spec/v3
github.com/prometheus-operator/prometheus-operator@v0.85.0/example/prometheus-operator-crd
sigs.k8s.io/gateway-api@v1.4.1/config/crd/standard
github.com/kedacore/keda/v2@v2.21.0/config/crd/bases
github.com/cert-manager/cert-manager@v1.21.2/deploy/crds'

scripts/debian-package.sh promtool=prometheus
tools=target/tools
wanted="$helm $helm_docs $kubeconform $actionlint $schemas $(cksum <tests/python/kube_schemas.py)"
if [ "$(cat $tools/deploy-tools.txt 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi
if ! command -v go >/dev/null 2>&1; then
    echo "deploy-tools: Go is missing: the chart is checked only by an installed helm, and not by schema" >&2
    exit 0
fi
# From 1.21 on Go fetches the release that a module asks for; Debian 12 has an older one.
minor=$(cd / && go env GOVERSION | sed 's/^go1\.\([0-9]*\).*/\1/')
if [ "$minor" -lt 21 ]; then
    echo "deploy-tools: Go 1.$minor is too old to build helm: the chart is checked only by an installed helm, and not by schema" >&2
    exit 0
fi
scripts/python-venv.sh
mkdir -p $tools/bin
root=$PWD
# Outside of every Go module, so that no module here changes the build.
cd $tools
GOBIN=$root/$tools/bin
GOFLAGS=-buildvcs=false
export GOBIN GOFLAGS
for module in $helm $helm_docs $kubeconform $actionlint; do
    go install "$module" || {
        echo "deploy-tools: cannot build $module" >&2
        exit 1
    }
done
folders=''
for schema in $schemas; do
    version=${schema#*@}
    version=${version%%/*}
    module=${schema%%@*}@$version
    folders="$folders $(go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')/${schema#"$module"/}"
done
# shellcheck disable=SC2086 # the list of folders is split on purpose
"$root/target/venv/bin/python" "$root/tests/python/kube_schemas.py" schemas $folders
# shellcheck disable=SC2086 # the list of folders is split on purpose
printf '%s\n' $folders >schema-folders.txt
printf '%s' "$wanted" >deploy-tools.txt
