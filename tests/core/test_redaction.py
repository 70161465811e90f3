"""What is taken out of a bundle: every planted secret, in whatever it is wrapped; and nothing that is none."""

import base64
import json
import random
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.core.redaction import log_redacted, program_of, redacted, redacted_value
from mpsd.core.secret_names import GONE, looks_secret

_ALPHABET = string.ascii_letters + string.digits
_NAMES = [
    "PASSWORD",
    "db_password",
    "API_KEY",
    "apiKey",
    "AWS_SECRET_ACCESS_KEY",
    "token",
    "GITHUB_TOKEN",
    "passphrase",
]
_NAMES += ["client-key-data", "client-certificate-data", "HF_TOKEN", "cookie", "credentials", "private_key"]


def secret(seed: int, length: int = 24, alphabet: str = _ALPHABET) -> str:
    chosen = random.Random(seed)
    return "".join(chosen.choice(alphabet) for _letter in range(length))


def made_up(seed: int) -> str:
    """What no word looks like, whatever the seed."""
    return f"q{secret(seed, 10)}7"


def in_hex(seed: int, length: int) -> str:
    """With a letter and a digit, whatever the seed."""
    return f"{secret(seed, length, '0123456789abcdef')}a7"


def jwt(seed: int) -> str:
    parts = [
        base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in ('{"alg":"RS256"}', '{"sub":"x"}')
    ]
    return ".".join([*parts, secret(seed, 40)])


def pem(seed: int) -> str:
    kind = ["RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY"][seed % 4]
    return f"-----BEGIN {kind}-----\n{secret(seed, 64)}\n{secret(seed + 1, 20)}\n-----END {kind}-----"


# What holds a secret, and the part that must not be seen.
_SEEDS = st.integers(0, 2**32)
_WRAPPED = st.one_of(
    st.tuples(
        st.sampled_from(_NAMES),
        _SEEDS,
        st.sampled_from(["{}={}", "{}: {}", '{}="{}"', '"{}": "{}"', "--{} {}", "{} : '{}'"]),
    ).map(lambda drawn: (drawn[2].format(drawn[0], secret(drawn[1])), secret(drawn[1]))),
    _SEEDS.map(lambda seed: (f"Authorization: Bearer {secret(seed)}", secret(seed))),
    _SEEDS.map(lambda seed: (f"authorization=basic {secret(seed)}==", secret(seed))),
    _SEEDS.map(lambda seed: (f"postgres://me:{secret(seed)}@db.example:5432/x", secret(seed))),
    _SEEDS.map(lambda seed: (f"https://{secret(seed)}@git.example/x.git", secret(seed))),
    _SEEDS.map(lambda seed: (f"saw {jwt(seed)} there", jwt(seed))),
    _SEEDS.map(lambda seed: (pem(seed), secret(seed, 64))),
    _SEEDS.map(lambda seed: ("AKIA" + secret(seed, 16, string.ascii_uppercase + string.digits),) * 2),
    _SEEDS.map(lambda seed: ("ghp_" + secret(seed, 36),) * 2),
    _SEEDS.map(lambda seed: (base64.b64encode(random.Random(seed).randbytes(60)).decode(),) * 2),
    _SEEDS.map(lambda seed: (json.dumps(json.dumps({"password": secret(seed)})), secret(seed))),
    st.tuples(
        _SEEDS,
        st.sampled_from(
            [
                "with password {} at port 22",
                "password for bob is {}.",
                "the token {}, which is old",
                "api key '{}'",
                "secret {}",
                "mysql -uroot -p{} db",
                "docker login -p {} host",
                "curl -u me:{} host",
                "serve --password {} --port 22",
                "serve --api-key={}",
                "<password>{}</password>",
                '<user name="x" password="{}"/>',
                '<property name="token" value="{}"/>',
            ]
        ),
    ).map(lambda drawn: (drawn[1].format(made_up(drawn[0])), made_up(drawn[0]))),
    st.tuples(
        _SEEDS, st.integers(10, 37), st.sampled_from(["key {}", "Salt: {}", "nonce -> {}", "signing key|{}", "seed={}"])
    ).map(lambda drawn: (drawn[2].format(in_hex(*drawn[:2])), in_hex(*drawn[:2]))),
)
_AROUND = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30)


@given(_AROUND, _WRAPPED, _AROUND)
def test_a_planted_secret_never_appears(before: str, wrapped: tuple[str, str], after: str) -> None:
    text, hidden = wrapped
    assert hidden in text
    assert hidden not in redacted(f"{before}\n{text}\n{after}")
    assert hidden not in redacted(f"{before} {text} {after}")


@given(_AROUND, _WRAPPED)
def test_nor_in_any_place_of_an_object(key: str, wrapped: tuple[str, str]) -> None:
    text, hidden = wrapped
    thing = {"metadata": {"annotations": {key: text, text: key}}, "spec": [{"args": ["x", text]}, [text]]}
    assert hidden not in json.dumps(redacted_value(thing)).replace("\\n", "\n")


@given(st.sampled_from(_NAMES), _SEEDS)
def test_a_value_under_a_name_that_looks_secret_goes_whatever_it_is(name: str, seed: int) -> None:
    hidden = secret(seed, 8)
    environment = [{"name": name, "value": hidden}, {"name": "HOME", "value": "/root"}]
    told = redacted_value({"env": environment, name: hidden, "deep": {name: [hidden, {"x": 1}]}})
    assert hidden not in json.dumps(told)
    assert told["env"][1] == {"name": "HOME", "value": "/root"}
    assert told[name] == GONE


# Each has `hid3den` in it, which is what must go.
FORMS = [
    "Authorization: Basic hid3den",
    "Authorization: token hid3den",
    'curl -H "Authorization: Bearer hid3den" https://api.example',
    "Cookie: a=b; session=hid3den",
    'auth = "hid3den"',  # containerd's config.toml, of a registry
    '{"auths":{"registry.example":{"auth":"hid3den"}}}',
    "DB_PASS=hid3den",
    "AccountName=x;AccountKey=hid3den==;EndpointSuffix=y",
    "password=some,thing;hid3den",
    "password: of several, hid3den words",
    "password: 'it''s hid3den'",
    '{"password": "s\\"hid3den"}',
    "password => hid3den",
    "password:          hid3den",
    "env[PASSWORD]=hid3den",
    "token=b'hid3den'",
    '--token "hid3den words"',
    '["serve", "--token", "hid3den"]',
    "- name: DB_PASSWORD\n  value: hid3den",
    '[{"name":"DB_PASSWORD","value":"hid3den"}]',
    "{Name:DB_PASSWORD Value:hid3den ValueFrom:nil}",
    "password: |-\n  of several\n  hid3den lines\nother: x",
    "postgres://me:so/hid3den@db.example/x",
    "url=https://x.example/?token=hid3den&gpu=1",
    "https://x.example/?X-Amz-Signature=hid3den",
    "connecting with password hid3den now",
    "the password for user bob is hid3den.",
    "password of bob@db: hid3den",
    'Password set to "hid3den words"',
    '{"event": "login with password hid3den", "gpu": "gpu0"}',
    "the token is hid3den; it ends soon",
    "api key hid3den",
    "secret key 'hid3den' refused",
    "GRANT ALL TO bob IDENTIFIED BY 'hid3den'",
    "client secret hid3den",
    "ENV WANDB_API_KEY hid3den",
    "DB_PASSWORD for bob is hid3den",
    "set MY_OWN_REGISTRY_TOKEN to hid3den",
    "token for api key hid3den",
    "password for token: hid3den",
    "tokenname: db_password=hid3den",
    '{"tokenname": "db_password=hid3den"}',
    "token_file=tokenname=DB_TOKEN=hid3den",
    "--token\npassword for bob is hid3den",
    "curl -u PASSWORD: hid3den",
    "--password hid3den,words",
    "--password=hid3den",
    "--token=hid3den",
    "mysql -u root -phid3den db",
    "mysqldump -p hid3den",
    "/usr/bin/mysql -uroot -p'hid3den words' -h db",
    '["mysql","-uroot","-phid3den"]',
    "sshpass -p hid3den ssh host",
    "docker login -u me -p hid3den registry.example",
    "redis-cli -h cache -a hid3den",
    "curl -u me:hid3den https://x.example",
    "ldapsearch -D cn=x -w hid3den",
    "<password>hid3den</password>",
    "<db:Password kind='x'>\n  hid3den words\n</db:Password>",
    "<password><![CDATA[hid3den]]></password>",
    "<password><value>x</value><value>hid3den</value></password>",
    '<user name="bob" password="hid3den"/>',
    '<property name="db.password" value="hid3den"/>',
    '<property value="hid3den" name="db.password"/>',
    '<entry key="apiKey">hid3den</entry>',
    "&lt;password&gt;hid3den&lt;/password&gt;",
    '{"xml": "\\u003cpassword\\u003ehid3den\\u003c/password\\u003e"}',
    "<password>hid3den",
]


@pytest.mark.parametrize("text", FORMS)
def test_a_secret_goes_in_each_form_that_people_write_it_in(text: str) -> None:
    assert "hid3den" in text
    assert "hid3den" not in redacted(text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("login?token=x&gpu=1", f"login?token={GONE}&gpu=1"),
        ('{"password": null, "gpu": "gpu0"}', '{"password": null, "gpu": "gpu0"}'),
        ('{"password": 12, "gpu": "gpu0"}', f'{{"password": {GONE}, "gpu": "gpu0"}}'),
        ("password: |\n  x\n  y\ngpu: gpu0\n", f"password: {GONE}\ngpu: gpu0\n"),
        (
            "- name: TOKEN\n  value: x\n- name: HOME\n  value: /root\n",
            f"- name: TOKEN\n  value: {GONE}\n- name: HOME\n  value: /root\n",
        ),
    ],
)
def test_what_stands_beside_a_secret_stays(text: str, left: str) -> None:
    assert redacted(text) == left


HARMLESS = [
    "2026-11-22T08:00:00Z gpu0 is wedged: no answer to get_server_list within 2 s",
    "GPU-c75266a8-297f-bea7-e1dd-2896a9e2946a",
    '{"event": "state", "domain": "gpu0", "state": "ready", "uuid": "GPU-c75266a8-297f-bea7-e1dd-2896a9e2946a"}',
    "image: registry.example/mpsd@sha256:" + "0123456789abcdef" * 4,
    "/var/lib/kubelet/pods/6b9b1c1e-8a8b-4f1c-9b52-3f6e3c9d7f10/volumes/kubernetes.io~projected/kube-api-access",
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=0",
    "secretName: mpsd-webhook-certificates",
    "automountServiceAccountToken: true",
    "automountServiceAccountToken: false # it asks nobody",
    "    environment-secret: warn      # of a Secret's keys",
    "MPSD_LOG_FORMAT=json MPSD_NODE_NAME=gpu-a1 --listen 127.0.0.1:9448",
    "a basic understanding of what a token is, and which secret it names",
    "failed calling webhook: Post https://mpsd-webhook.mpsd-system.svc:443/validate: x509: unknown authority",
    "serviceAccountName: mpsd-agent",
    "MIG-GPU-c75266a8-297f-bea7-e1dd-2896a9e2946a/1/0",
    "https://10.0.0.1:443/apis/mpsd.io/v1alpha1/mpsnodes@x",
    "topologyKey: kubernetes.io/hostname, key: gpu",
    "password authentication failed for user postgres",
    "MountVolume.SetUp failed for volume certificates: secret mpsd-webhook-certificates-v2 not found",
    'secret "mpsd-system/default-token-x7k2p" not found',
    "the token has expired 3 h ago; token of 24 bytes",
    "MPSD_TOKEN is not set; HF_TOKEN has expired; API_KEY required",
    "cannot read token /var/run/secrets/kubernetes.io/serviceaccount/token1",
    "docker run -p 8080:80 -u 1000 nginx",
    "mysql -P 3306 -h db -e 'select 1'",
    "ssh -p 2222 host; mpsd up -p 9448",
    "usage: login <token> [--listen ADDRESS]",
    "<pod name='train-0'><limit>7</limit></pod>",
    "<secretName>mpsd-webhook-certificates</secretName>",
    "key: kubernetes.io/hostname, operator: Exists",
    "sort key memory, session opened for user root by uid 0",
    "chain key sha256:" + "0123456789abcdef" * 4,
    'mpsd_gpu_memory_granted_bytes{gpu="GPU-c75266a8-297f-bea7-e1dd-2896a9e2946a"} 7.5e+09',
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


@given(st.lists(st.sampled_from(HARMLESS), max_size=6))
def test_lines_without_a_secret_stay_among_each_other(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert redacted(text) == text


@given(st.lists(st.sampled_from(HARMLESS), min_size=1, max_size=3), _WRAPPED)
def test_lines_beside_a_secret_stay(lines: list[str], wrapped: tuple[str, str]) -> None:
    text = "\n".join(lines)
    told = redacted(f"{text}\n\n{wrapped[0]}\n\n{text}")
    assert told.startswith(f"{text}\n")
    assert told.endswith(f"\n{text}")


def tells_nothing(text: str) -> bool:
    return not looks_secret(text) and not any(word in text for word in _WEAK)


_WEAK = ("key", "salt", "seed", "nonce", "hmac", "psk", "otp", "session", "sid", "ticket", "identified", "passcode")


@given(st.text(string.ascii_lowercase + " .,0123456789-_\n", max_size=200).filter(tells_nothing))
def test_plain_words_stay(text: str) -> None:
    assert redacted(text) == text


@given(st.text(max_size=60) | _WRAPPED.map(lambda wrapped: wrapped[0]))
def test_what_was_redacted_is_left_alone_the_second_time(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=9,
    )
)
def test_any_json_has_its_shape_afterwards(value: Any) -> None:
    told = redacted_value(value)
    json.dumps(told)
    assert isinstance(told, type(value)) or told == GONE or isinstance(value, str)


@given(st.sampled_from(_NAMES), _SEEDS)
def test_the_word_after_an_option_that_looks_secret_goes(name: str, seed: int) -> None:
    told = redacted_value({"args": ["serve", f"--{name}", secret(seed), "--listen", "127.0.0.1:9448"]})
    assert told["args"] == ["serve", f"--{name}", GONE, "--listen", "127.0.0.1:9448"]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["mysql", "-uroot", "-phid3den", "db"], ["mysql", "-uroot", f"-p{GONE}", "db"]),
        (["/usr/bin/mysql", "-p", "hid3den"], ["/usr/bin/mysql", "-p", GONE]),
        (["mysql", "-p", "-h", "db"], ["mysql", "-p", "-h", "db"]),
        (["docker", "login", "-p", "hid3den"], ["docker", "login", "-p", GONE]),
        (["docker", "run", "-p", "8080:80"], ["docker", "run", "-p", "8080:80"]),
        (["serve", "-p", "9448"], ["serve", "-p", "9448"]),
    ],
)
def test_a_short_option_is_a_password_only_behind_a_program_that_takes_it_so(words: list[str], left: list[str]) -> None:
    assert redacted_value({"args": words}) == {"args": left}


def test_a_weak_name_tells_together_with_a_value_that_is_a_key() -> None:
    told = redacted_value({"key": "9f86d081884c7d65", "salt": "aGVsbG8gd29ybGQ5", "seed": "12345678901234"})
    assert told == {"key": GONE, "salt": GONE, "seed": "12345678901234"}
    effects = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    assert redacted_value(effects) == effects


def test_what_the_api_server_repeats_of_an_object_is_dropped() -> None:
    metadata = {
        "name": "x",
        "managedFields": [{}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
    }
    assert redacted_value({"metadata": metadata}) == {"metadata": {"name": "x", "annotations": {}}}


def test_a_command_keeps_its_program_alone() -> None:
    assert program_of("python3 train.py --lr 1") == "python3 [arguments redacted]"
    assert program_of("nvidia-cuda-mps-server") == "nvidia-cuda-mps-server"


def test_a_log_line_says_which_program_and_not_its_arguments() -> None:
    line = '{"event": "granted", "command": "python3 train.py \\"hunter2\\"", "gpu": "gpu0"}'
    assert log_redacted(line) == '{"event": "granted", "command": "python3 [arguments redacted]", "gpu": "gpu0"}'
    assert (
        log_redacted("granted command='a.out hunter2' gpu=gpu0")
        == "granted command='a.out [arguments redacted]' gpu=gpu0"
    )


_SLOW = [
    "<token>",
    "<token ",
    "<a ",
    "<a b=",
    '<a b="',
    "&lt;",
    "\\u003ctoken\\u003e",
    "<token></x>",
    "password ",
    "key ",
]
_SLOW += [
    "password ",
    "key ",
    "password '",
    "token for ",
    "token is ",
    "mysql ",
    "mysql -p",
    "mysql -p'",
    "docker ",
    "docker login ",
    "-p ",
]
_SLOW += ["api key", "a-key ", "secret a-", "identified ", "secret word.word-", "<a name='token'>", "token\t"]


def test_a_text_made_to_be_slow_is_not() -> None:
    for unit in ("eyJ", "a:", "-----BEGIN PRIVATE KEY-----", "://", "token", '\\"', "--", "token='", "=", *_SLOW):
        text = unit * (60_000 // len(unit))
        assert isinstance(redacted(text), str)
