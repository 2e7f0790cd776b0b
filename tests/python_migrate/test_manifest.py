"""Details of manifests that no whole case shows."""

import pytest

from keepstep.migrate.manifest import migrate

JOB = """
kind: HyperPodPyTorchJob
spec:
  nprocPerNode: "2"
  replicaSpecs:
    - name: pod
      replicas: NODES
      spares: SPARES
      template:
        spec:
          containers:
            - env:
                - {name: A, value: "a 1"}
                - {name: EMPTY, value: ""}
                - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
                - {name: B, value: "/$(A)/$(POD)/$(C)"}
              command: COMMAND
  runPolicy:
    faultDeadlineSeconds: 100000
    logMonitoringConfiguration:
      - {name: twice, logPattern: "it's", faultOnMatch: true}
      - {name: twice, logPattern: "a|.*b", faultOnMatch: true, colour: red}
"""


def migrated(command, nodes=1, spares=0):
    text = JOB.replace("COMMAND", command).replace("NODES", str(nodes)).replace("SPARES", str(spares))
    return migrate(text)


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("[hyperpodrun, 'a $(A)$(EMPTY).py', '$X', '$(POD)']", ["'a a 1.py' '$X' \"${POD}\""]),
        ("[bash, -lc, 'hyperpodrun \"$(A)\" $(POD) $(date)']", ["#!/bin/bash -l", '"a 1" ${POD} $(date)']),
        ("[/bin/bash, -eu, -o, pipefail, -c, 'hyperpodrun a.py']", ["#!/bin/bash\n", "set -eu -o pipefail\n"]),
        ("[hyperpodrun, a.py]", ["export B='/a 1/'\"${POD}\"/'$(C)'", "# The node starts this"]),
    ],
)
def test_commands_and_values_reach_the_shell_as_kubernetes_passes_them(command, lines):
    text = migrated(command).text
    assert [line for line in lines if line not in text] == [], text


def test_one_node_needs_no_token_and_a_spare_one_does():
    assert "--token-file" not in migrated("[hyperpodrun, a.py]").text
    assert (
        "--log-rules $log_rules --token-file job.token --rdzv-endpoint $"
        in migrated("[hyperpodrun, a.py]", spares=1).text
    )


def test_limits_that_keepstep_does_not_take_are_left_out_with_a_note():
    result = migrated("[hyperpodrun, a.py]")
    assert "--node-timeout" not in result.text
    assert any(note.says == "--node-timeout takes 1 to 86400 seconds" for note in result.notes.missing)


def test_log_rules_get_different_names_and_match_at_the_start_of_a_line():
    result = migrated("[hyperpodrun, a.py]", nodes=3)
    assert "- name: 'twice'\n    pattern: '^(?:it''s)'\n    ranks: [0, 2, 4]\n" in result.text
    assert "- name: 'twice (1)'\n    pattern: '^(?:a|.*b)'\n" in result.text
    assert any(note.says == "keepstep migrate does not know its colour" for note in result.notes.missing)
