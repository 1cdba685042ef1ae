--
-- PostgreSQL database dump
--

\restrict fmenA3SWrli7UoeKbal7JHjcoiidOio6f9bGpny1AM3u7198mWhqPgowhRfyLck

-- Dumped from database version 18.4
-- Dumped by pg_dump version 18.4

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: lakesync; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA lakesync;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: action; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.action (
    gateway text NOT NULL COLLATE pg_catalog."C",
    client_id text NOT NULL COLLATE pg_catalog."C",
    action_id text NOT NULL COLLATE pg_catalog."C",
    idempotency_key text COLLATE pg_catalog."C",
    attempts integer NOT NULL,
    claim text NOT NULL COLLATE pg_catalog."C",
    lease_ms bigint NOT NULL,
    touched_ms bigint NOT NULL,
    outcome bytea
);


--
-- Name: action_log; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.action_log (
    gateway text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    at_ms bigint NOT NULL,
    client_id text NOT NULL COLLATE pg_catalog."C",
    action_id text NOT NULL COLLATE pg_catalog."C",
    connector text NOT NULL COLLATE pg_catalog."C",
    action_type text NOT NULL COLLATE pg_catalog."C",
    attempt integer NOT NULL,
    code text NOT NULL COLLATE pg_catalog."C",
    ms bigint NOT NULL
);


--
-- Name: batch; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.batch (
    batch_id text NOT NULL COLLATE pg_catalog."C",
    gateway text NOT NULL COLLATE pg_catalog."C",
    shard text NOT NULL COLLATE pg_catalog."C",
    epoch bigint NOT NULL,
    from_seq bigint NOT NULL,
    to_seq bigint NOT NULL,
    deltas bigint NOT NULL,
    bytes bigint NOT NULL,
    arrival_low bigint NOT NULL,
    arrival_high bigint NOT NULL,
    confirmed_ms bigint,
    snapshot_id bigint
);


--
-- Name: bucket; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.bucket (
    id bigint NOT NULL,
    gateway text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: bucket_id_seq; Type: SEQUENCE; Schema: lakesync; Owner: -
--

ALTER TABLE lakesync.bucket ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME lakesync.bucket_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: client; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.client (
    gateway text NOT NULL COLLATE pg_catalog."C",
    client_id text NOT NULL COLLATE pg_catalog."C",
    record bytea NOT NULL
);


--
-- Name: connector; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.connector (
    gateway text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    body bytea NOT NULL
);


--
-- Name: cut; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.cut (
    gateway text NOT NULL COLLATE pg_catalog."C",
    epoch bigint NOT NULL,
    arrival bigint NOT NULL,
    body bytea NOT NULL
);


--
-- Name: entry; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.entry (
    bucket bigint NOT NULL,
    table_name text NOT NULL COLLATE pg_catalog."C",
    row_id text NOT NULL COLLATE pg_catalog."C",
    first bigint NOT NULL,
    since bigint NOT NULL,
    left_at bigint NOT NULL,
    changed bigint NOT NULL,
    inside boolean NOT NULL
);


--
-- Name: erasure; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.erasure (
    gateway text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    table_name text COLLATE pg_catalog."C",
    row_id text COLLATE pg_catalog."C",
    client_id text COLLATE pg_catalog."C",
    hlc bigint NOT NULL,
    arrival bigint NOT NULL,
    requested_ms bigint NOT NULL,
    deltas bigint NOT NULL,
    row_count bigint NOT NULL,
    done_ms bigint,
    lake_ms bigint
);


--
-- Name: flush_job; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.flush_job (
    gateway text NOT NULL COLLATE pg_catalog."C",
    set_aside integer NOT NULL,
    job_id text NOT NULL COLLATE pg_catalog."C",
    body bytea NOT NULL
);


--
-- Name: gateway; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.gateway (
    id text NOT NULL COLLATE pg_catalog."C",
    epoch bigint NOT NULL,
    arrival bigint NOT NULL,
    config_version bigint NOT NULL,
    rules bytea,
    rules_version bigint NOT NULL,
    write_scope text COLLATE pg_catalog."C"
);


--
-- Name: ledger; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.ledger (
    gateway text NOT NULL COLLATE pg_catalog."C",
    day text NOT NULL COLLATE pg_catalog."C",
    count bigint NOT NULL,
    id_sum bigint NOT NULL,
    flushed_count bigint NOT NULL,
    flushed_id_sum bigint NOT NULL
);


--
-- Name: log; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.log (
    gateway text NOT NULL COLLATE pg_catalog."C",
    shard text NOT NULL COLLATE pg_catalog."C",
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    arrival bigint NOT NULL,
    client_id text NOT NULL COLLATE pg_catalog."C",
    hlc_low bigint NOT NULL,
    hlc_high bigint NOT NULL,
    count integer NOT NULL,
    id_sum bigint NOT NULL,
    bytes bigint NOT NULL,
    committed_ms bigint NOT NULL,
    claims bytea NOT NULL,
    ids bytea NOT NULL,
    body bytea
);
ALTER TABLE ONLY lakesync.log ALTER COLUMN body SET STORAGE EXTERNAL;


--
-- Name: mark; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.mark (
    name text NOT NULL COLLATE pg_catalog."C",
    body text NOT NULL
);


--
-- Name: migration; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.migration (
    version integer NOT NULL,
    name text NOT NULL
);


--
-- Name: reindex; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.reindex (
    gateway text NOT NULL COLLATE pg_catalog."C",
    rules_version bigint NOT NULL,
    table_name text COLLATE pg_catalog."C",
    row_id text COLLATE pg_catalog."C",
    done bigint NOT NULL
);


--
-- Name: row_state; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.row_state (
    gateway text NOT NULL COLLATE pg_catalog."C",
    table_name text NOT NULL COLLATE pg_catalog."C",
    row_id text NOT NULL COLLATE pg_catalog."C",
    body bytea NOT NULL
)
WITH (fillfactor='80');


--
-- Name: shard; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.shard (
    gateway text NOT NULL COLLATE pg_catalog."C",
    shard text NOT NULL COLLATE pg_catalog."C",
    last_seq bigint NOT NULL,
    last_arrival bigint NOT NULL,
    flushed_seq bigint NOT NULL,
    trimmed_seq bigint NOT NULL,
    deltas bigint NOT NULL,
    bytes bigint NOT NULL,
    flush_requested_ms bigint,
    flush_requested_seq bigint NOT NULL
);


--
-- Name: shared_cursor; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.shared_cursor (
    gateway text NOT NULL COLLATE pg_catalog."C",
    cursor bigint NOT NULL,
    parts text NOT NULL
);


--
-- Name: spelled_name; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.spelled_name (
    gateway text NOT NULL COLLATE pg_catalog."C",
    namespace text NOT NULL COLLATE pg_catalog."C",
    folded text NOT NULL COLLATE pg_catalog."C",
    spelled text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: table_schema; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.table_schema (
    gateway text NOT NULL COLLATE pg_catalog."C",
    table_name text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    body bytea NOT NULL
);


--
-- Name: writer; Type: TABLE; Schema: lakesync; Owner: -
--

CREATE TABLE lakesync.writer (
    gateway text NOT NULL COLLATE pg_catalog."C",
    client_id text NOT NULL COLLATE pg_catalog."C",
    hlc_high bigint NOT NULL,
    widest bigint NOT NULL
);


--
-- Data for Name: action; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.action (gateway, client_id, action_id, idempotency_key, attempts, claim, lease_ms, touched_ms, outcome) FROM stdin;
\.


--
-- Data for Name: action_log; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.action_log (gateway, seq, at_ms, client_id, action_id, connector, action_type, attempt, code, ms) FROM stdin;
\.


--
-- Data for Name: batch; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.batch (batch_id, gateway, shard, epoch, from_seq, to_seq, deltas, bytes, arrival_low, arrival_high, confirmed_ms, snapshot_id) FROM stdin;
\.


--
-- Data for Name: bucket; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.bucket (id, gateway, name) FROM stdin;
1	shop	["mine#1ac5d50d9920",["alice"]]
2	shop	["mine#1ac5d50d9920",["bob"]]
\.


--
-- Data for Name: client; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.client (gateway, client_id, record) FROM stdin;
shop	alice	\\x5b22616c696365222c313739353438383438313135332c313739353438383438313235312c5b5b312c7b22737562223a22616c696365227d2c312c5b225b5c226d696e65233161633564353064393932305c222c5b5c22616c6963655c225d5d225d2c3131373636393133333130373636303238382c2d312c302c302c66616c73652c66616c73652c305d5d2c5b5d2c5b5d2c302c302c302c302c747275652c66616c73652c5b5d2c6e756c6c2c66616c73655d
shop	bob	\\x5b22626f62222c313739353438383438313135332c313739353438383438313238332c5b5b312c7b22737562223a22626f62227d2c312c5b225b5c226d696e65233161633564353064393932305c222c5b5c22626f625c225d5d225d2c3131373636393133333130393535393239362c2d312c302c302c66616c73652c66616c73652c305d5d2c5b5d2c5b5d2c302c302c302c302c747275652c66616c73652c5b5d2c6e756c6c2c66616c73655d
\.


--
-- Data for Name: connector; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.connector (gateway, name, body) FROM stdin;
\.


--
-- Data for Name: cut; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.cut (gateway, epoch, arrival, body) FROM stdin;
\.


--
-- Data for Name: entry; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.entry (bucket, table_name, row_id, first, since, left_at, changed, inside) FROM stdin;
1	todos	01a20b72cf5c4c3abeadc6745d2bd834	117669133107660032	117669133107660032	0	117669133107660032	t
1	todos	01a20b72cf694e1e9820187e70096c09	117669133107660288	117669133107660288	0	117669133107660288	t
1	todos	01a20b72cf704c16a15517da9caf28c2	117669133107658752	117669133107658752	0	117669133107658752	t
1	todos	01a20b72cf7445bab6a70b12cccdde6e	117669133107659008	117669133107659008	0	117669133107659008	t
1	todos	01a20b72cf7c4719ac144edf19001aa0	117669133107659264	117669133107659264	0	117669133107659264	t
1	todos	01a20b72cf7d4c31b4f0060256f4571c	117669133107659520	117669133107659520	0	117669133107659520	t
1	todos	01a20b72cf844e9d9f3e6abf0e3a9c07	117669133107659776	117669133107659776	0	117669133107659776	t
2	todos	01a20b72cf8c4f0183e2609d35414d68	117669133109559296	117669133109559296	0	117669133109559296	t
\.


--
-- Data for Name: erasure; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.erasure (gateway, seq, table_name, row_id, client_id, hlc, arrival, requested_ms, deltas, row_count, done_ms, lake_ms) FROM stdin;
\.


--
-- Data for Name: flush_job; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.flush_job (gateway, set_aside, job_id, body) FROM stdin;
\.


--
-- Data for Name: gateway; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.gateway (id, epoch, arrival, config_version, rules, rules_version, write_scope) FROM stdin;
shop	1795488481153	117669133109559296	2	\\x7b2276657273696f6e223a312c226275636b657473223a5b7b226e616d65223a226d696e65222c227461626c6573223a5b22746f646f73225d2c2266696c74657273223a5b7b22636f6c756d6e223a226f776e6572222c226f70223a226571222c2276616c7565223a226a77743a737562227d5d7d2c7b226e616d65223a227465616d222c227461626c6573223a5b22746f646f73225d2c2266696c74657273223a5b7b22636f6c756d6e223a227465616d222c226f70223a22696e222c2276616c7565223a226a77743a7465616d227d5d7d5d7d	1	\N
\.


--
-- Data for Name: ledger; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.ledger (gateway, day, count, id_sum, flushed_count, flushed_id_sum) FROM stdin;
shop	2026-11-24	10	-647650780413028760	0	0
\.


--
-- Data for Name: log; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.log (gateway, shard, epoch, seq, arrival, client_id, hlc_low, hlc_high, count, id_sum, bytes, committed_ms, claims, ids, body) FROM stdin;
shop	main	1795488481153	1	117669133107660288	alice	117669127998144512	117669131952324608	9	-2020066412437843838	707	1795488481257	\\x7b22737562223a22616c696365227d	\\x00006fcf720ba201000074cf720ba20100007ccf720ba20101007ccf720ba201000083cf720ba20100005ccf720ba2010000b1d0720ba201000068cf720ba20100000cbb730ba201d70e84878635f837bee8c4d0a325aef2e5f221039c45a80dcb9106efc16d9314d3687f405fae70f15339ee078c4349dfe901508d41f3c9539c332c569f41677ff0a5ecd5a3bc0296b0b656472e9fc0a7f96914a6fd44de5e2de9d9595fd5e0cc410bbdc2c01ac2f399e43962311a56524f217bb19902b3646f7ab630539a16e5edd64cdd1b1792876c1c7ebcadefd5ba01	\\x0128b52ffd605408c51500c6fb931e4053d201e9f10fb1ad3485ecc10967f27f0a2d4952241999db3a86e17501a4007f008200dd5609192e0927895838154bf2d48916735dee4d85fd5f77f1cfdb9c528a96ebc3a66c4e3fafa85154277318e3e10709285b566f778dd59662aa04907e4020010e1d163eb14111d0811c40c683359000c41f1811188800c2d120805c4c48643c281a0940bc231e8c31e1118f4602106bb5e75e3ea6328b4b3592f9369390711122801c830d0a0b2400b9a03814188800e28f843190006421a140e1c00011402a28108e86bf7ec574c475ff86df24e79fd54d12d6ed29d5ef856a93ced26512bfa451217a4cea1a0fb35b42e67c72fe3bb72e925f42e738655d15a2c4fccc122afc7d4839b1f7a8cc3e1d4b293422d224e622dafae388d5bc65b08d2993fa1a2a6792b0a462bfaba92b25594bf1f524e690d5b9bbbd73da311d6c754fcc9932e8c5cfe98547298bd655cd16c9488f3f4c3044172c0c10203070929a5d47b94dea5b7faa5f572f6b2eddb9e22f4f876789f97f160f5b0db9ef5d5a2562299e9ec44ea2297dd813bec64e4c90d1b031d12237b6666949299679473d425bdad3ce537dc7f5649c3f09df68b9530a898c31d4cbe7f40917bfdfb38ea8cfac954cd8f87fb8cd67120e1d48d9e216172b761c99d74c1eefe14c708ff3f968bd15e762fa66658d3a39ced39e4c4f05ed2cb70ee222e3f1000e810160e118cf00eec5d47c6209a7a1d2e267cfabcc7bbd49b8e8ee769254c9a5597a634ae16fc9b6bb5ec4a5dba52e4b64dc6891e97a396e59fd6f5c2ed6f6459a9fe5b8d9755fe54d4bc34dc9929793e4c9cbedfb2b205093841917037020fbf3660db69700d0698e03d69b0b4d01e88ccca1237976046c27015f019b296e4b050a301b90d3e4a04fa1a406f4349c8c74b7c4c04e836b3dd94a1798333ed4275b974e8d8d0538daa2022f9e3a80197dc6682e22f539ad14db1105
shop	main	1795488481153	2	117669133109559296	bob	117669128001290240	117669128001290240	1	1372415632024815078	207	1795488481286	\\x7b22737562223a22626f62227d	\\x00008ccf720ba201130bccbef70845e614bb272796a6366a01	\\x0128b52ffd60140025060082ce2b1e4089821dc6519462cd2b42e4a50af1f9fd42c6dc6ee11f7288ac63185e1787c7574a27b28e8fd15ae7c8d8d4b6c4222ccdad5682a6597cab98d769bd96ea84d82ed99019ee29afce8e278bcc36537699294da9558a3b4f839383a2130d4a1e871402487af766cc9770f29e1551efee30b82f12078c49f9e490c29a68c4e49333155141e9c4b6caf46165256226d92cb8e695bd7b2c34a8e2e40b1a69bd7b4ff8eac90b060208040a7747a07718020600e9833c511700a339cab82fb9526c9519
\.


--
-- Data for Name: mark; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.mark (name, body) FROM stdin;
\.


--
-- Data for Name: migration; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.migration (version, name) FROM stdin;
1	0001_staging.sql
2	0002_actions.sql
3	0003_erasures.sql
4	0004_batches.sql
5	0005_reindex.sql
6	0006_batch_snapshots.sql
7	0007_shared_cursors.sql
8	0008_names.sql
9	0009_flush_jobs.sql
10	0010_marks.sql
\.


--
-- Data for Name: reindex; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.reindex (gateway, rules_version, table_name, row_id, done) FROM stdin;
shop	1	\N	\N	1
\.


--
-- Data for Name: row_state; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.row_state (gateway, table_name, row_id, body) FROM stdin;
shop	todos	01a20b72cf704c16a15517da9caf28c2	\\x5b22746f646f73222c223031613230623732636637303463313661313535313764613963616632386332222c3131373636393133333130373635383735322c5b5b5b3131373636393132373939393338393639362c22616c696365222c2264373065383438373836333566383337613832616463333638363636643763653366343939386666656136306365653163333736386263306662363438356136222c7b227469746c65223a22746f646f2033222c226f776e6572223a22616c696365227d2c325d5d2c6e756c6c2c5b3131373636393132373939393338393639362c22616c696365225d5d2c7b227469746c65223a3131373636393133333130373635383735322c226f776e6572223a3131373636393133333130373635383735327d2c7b22616c696365223a5b3131373636393133333130373635383735322c3131373636393133333130373635383735325d7d2c302c5b225b5c226d696e65233161633564353064393932305c222c5b5c22616c6963655c225d5d225d2c305d
shop	todos	01a20b72cf7445bab6a70b12cccdde6e	\\x5b22746f646f73222c223031613230623732636637343435626162366137306231326363636464653665222c3131373636393133333130373635393030382c5b5b5b3131373636393132373939393731373337362c22616c696365222c2262656538633464306133323561656632656565333132306437626438663438313861353636333137386566633438353634303537333630373965383061383237222c7b227469746c65223a22746f646f2034222c226f776e6572223a22616c696365227d2c325d5d2c6e756c6c2c5b3131373636393132373939393731373337362c22616c696365225d5d2c7b227469746c65223a3131373636393133333130373635393030382c226f776e6572223a3131373636393133333130373635393030387d2c7b22616c696365223a5b3131373636393133333130373635393030382c3131373636393133333130373635393030385d7d2c302c5b225b5c226d696e65233161633564353064393932305c222c5b5c22616c6963655c225d5d225d2c305d
shop	todos	01a20b72cf7c4719ac144edf19001aa0	\\x5b22746f646f73222c223031613230623732636637633437313961633134346564663139303031616130222c3131373636393133333130373635393236342c5b5b5b3131373636393132383030303234313636342c22616c696365222c2265356632323130333963343561383064636661363062323233653262303036313331353065646430623365303439386361656666356135666437306232656161222c7b227469746c65223a22746f646f2035222c226f776e6572223a22616c696365227d2c325d5d2c6e756c6c2c5b3131373636393132383030303234313636342c22616c696365225d5d2c7b227469746c65223a3131373636393133333130373635393236342c226f776e6572223a3131373636393133333130373635393236347d2c7b22616c696365223a5b3131373636393133333130373635393236342c3131373636393133333130373635393236345d7d2c302c5b225b5c226d696e65233161633564353064393932305c222c5b5c22616c6963655c225d5d225d2c305d
shop	todos	01a20b72cf7d4c31b4f0060256f4571c	\\x5b22746f646f73222c223031613230623732636637643463333162346630303630323536663435373163222c3131373636393133333130373635393532302c5b5b5b3131373636393132383030303234313636352c22616c696365222c2263623931303665666331366439333134303537653861666664623766613766663331613033306131336539666235663763616466663463343061353138616166222c7b227469746c65223a22746f646f2036222c226f776e6572223a22616c696365227d2c325d5d2c6e756c6c2c5b3131373636393132383030303234313636352c22616c696365225d5d2c7b227469746c65223a3131373636393133333130373635393532302c226f776e6572223a3131373636393133333130373635393532307d2c7b22616c696365223a5b3131373636393133333130373635393532302c3131373636393133333130373635393532305d7d2c302c5b225b5c226d696e65233161633564353064393932305c222c5b5c22616c6963655c225d5d225d2c305d
shop	todos	01a20b72cf844e9d9f3e6abf0e3a9c07	\\x5b22746f646f73222c223031613230623732636638343465396439663365366162663065336139633037222c3131373636393133333130373635393737362c5b5b5b3131373636393132383030303730303431362c22616c696365222c2264333638376634303566616537306631613333633164356338333930393234303338346566373134383162323532323932376530313862346334323461346234222c7b227469746c65223a22746f646f2037222c226f776e6572223a22616c696365227d2c325d5d2c6e756c6c2c5b3131373636393132383030303730303431362c22616c696365225d5d2c7b227469746c65223a3131373636393133333130373635393737362c226f776e6572223a3131373636393133333130373635393737367d2c7b22616c696365223a5b3131373636393133333130373635393737362c3131373636393133333130373635393737365d7d2c302c5b225b5c226d696e65233161633564353064393932305c222c5b5c22616c6963655c225d5d225d2c305d
shop	todos	01a20b72cf5c4c3abeadc6745d2bd834	\\x5b22746f646f73222c223031613230623732636635633463336162656164633637343564326264383334222c3131373636393133333130373636303033322c5b5b5b3131373636393132373939383134343531322c22616c696365222c2235333339656530373863343334396466663534353233343330663666613133643330393538613963316333653835666332663835376361386431633538356261222c7b226f776e6572223a22616c696365227d2c315d2c5b3131373636393132383032303439323238382c22616c696365222c2265393031353038643431663363393533356435626436653039623063613735323539613839656539393765643635663538303166326332366139346366663839222c7b227469746c65223a226368616e676564227d2c315d5d2c6e756c6c2c5b3131373636393132373939383134343531322c22616c696365225d5d2c7b226f776e6572223a3131373636393133333130373636303033322c227469746c65223a3131373636393133333130373636303033327d2c7b22616c696365223a5b3131373636393133333130373636303033322c3131373636393133333130373636303033325d7d2c302c5b225b5c226d696e65233161633564353064393932305c222c5b5c22616c6963655c225d5d225d2c305d
shop	todos	01a20b72cf694e1e9820187e70096c09	\\x5b22746f646f73222c223031613230623732636636393465316539383230313837653730303936633039222c3131373636393133333130373636303238382c5b5b5b3131373636393132373939383933303934342c22616c696365222c2239633333326335363966343136373766303937353362313035626339393938366162376631656637313165333964653638313037356162326266373832366565222c7b226f776e6572223a22616c696365227d2c315d2c5b3131373636393133313935323332343630382c22616c696365222c2266306135656364356133626330323936323266383236616536326631386461663561333934623561643961333537323961613465643236323661313934393231222c7b227469746c65223a226368616e6765642061667465722074686520666c757368227d2c315d5d2c6e756c6c2c5b3131373636393132373939383933303934342c22616c696365225d5d2c7b226f776e6572223a3131373636393133333130373636303238382c227469746c65223a3131373636393133333130373636303238387d2c7b22616c696365223a5b3131373636393133333130373636303238382c3131373636393133333130373636303238385d7d2c302c5b225b5c226d696e65233161633564353064393932305c222c5b5c22616c6963655c225d5d225d2c305d
shop	todos	01a20b72cf8c4f0183e2609d35414d68	\\x5b22746f646f73222c223031613230623732636638633466303138336532363039643335343134643638222c3131373636393133333130393535393239362c5b5b5b3131373636393132383030313239303234302c22626f62222c2231333062636362656637303834356536373765393337636336306164386532623537366563653162643835393036396466333337373463616465386433353537222c7b227469746c65223a226f6620626f62222c226f776e6572223a22626f62227d2c325d5d2c6e756c6c2c5b3131373636393132383030313239303234302c22626f62225d5d2c7b227469746c65223a3131373636393133333130393535393239362c226f776e6572223a3131373636393133333130393535393239367d2c7b22626f62223a5b3131373636393133333130393535393239362c3131373636393133333130393535393239365d7d2c302c5b225b5c226d696e65233161633564353064393932305c222c5b5c22626f625c225d5d225d2c305d
\.


--
-- Data for Name: shard; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.shard (gateway, shard, last_seq, last_arrival, flushed_seq, trimmed_seq, deltas, bytes, flush_requested_ms, flush_requested_seq) FROM stdin;
shop	main	2	117669133109559296	0	0	10	914	\N	0
\.


--
-- Data for Name: shared_cursor; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.shared_cursor (gateway, cursor, parts) FROM stdin;
\.


--
-- Data for Name: spelled_name; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.spelled_name (gateway, namespace, folded, spelled) FROM stdin;
shop		todos	todos
shop		todos.owner	todos.owner
shop		todos.title	todos.title
\.


--
-- Data for Name: table_schema; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.table_schema (gateway, table_name, version, body) FROM stdin;
shop	todos	1	\\x7b227461626c65223a22746f646f73222c22636f6c756d6e73223a5b7b226e616d65223a227469746c65222c2274797065223a22737472696e67227d2c7b226e616d65223a226f776e6572222c2274797065223a22737472696e67227d5d2c22736f757263655461626c65223a6e756c6c2c227072696d6172794b6579223a5b22726f775f6964225d2c22736f667444656c657465223a747275652c2265787465726e616c4964436f6c756d6e223a6e756c6c7d
\.


--
-- Data for Name: writer; Type: TABLE DATA; Schema: lakesync; Owner: -
--

COPY lakesync.writer (gateway, client_id, hlc_high, widest) FROM stdin;
shop	alice	117669131952324608	3954180096
shop	bob	117669128001290240	0
\.


--
-- Name: bucket_id_seq; Type: SEQUENCE SET; Schema: lakesync; Owner: -
--

SELECT pg_catalog.setval('lakesync.bucket_id_seq', 2, true);


--
-- Name: action_log action_log_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.action_log
    ADD CONSTRAINT action_log_pkey PRIMARY KEY (gateway, seq);


--
-- Name: action action_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.action
    ADD CONSTRAINT action_pkey PRIMARY KEY (gateway, client_id, action_id);


--
-- Name: batch batch_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.batch
    ADD CONSTRAINT batch_pkey PRIMARY KEY (batch_id);


--
-- Name: bucket bucket_gateway_name_key; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.bucket
    ADD CONSTRAINT bucket_gateway_name_key UNIQUE (gateway, name);


--
-- Name: bucket bucket_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.bucket
    ADD CONSTRAINT bucket_pkey PRIMARY KEY (id);


--
-- Name: client client_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.client
    ADD CONSTRAINT client_pkey PRIMARY KEY (gateway, client_id);


--
-- Name: connector connector_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.connector
    ADD CONSTRAINT connector_pkey PRIMARY KEY (gateway, name);


--
-- Name: cut cut_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.cut
    ADD CONSTRAINT cut_pkey PRIMARY KEY (gateway, epoch, arrival);


--
-- Name: entry entry_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.entry
    ADD CONSTRAINT entry_pkey PRIMARY KEY (bucket, table_name, row_id);


--
-- Name: erasure erasure_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.erasure
    ADD CONSTRAINT erasure_pkey PRIMARY KEY (gateway, seq);


--
-- Name: flush_job flush_job_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.flush_job
    ADD CONSTRAINT flush_job_pkey PRIMARY KEY (gateway, set_aside, job_id);


--
-- Name: gateway gateway_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.gateway
    ADD CONSTRAINT gateway_pkey PRIMARY KEY (id);


--
-- Name: ledger ledger_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.ledger
    ADD CONSTRAINT ledger_pkey PRIMARY KEY (gateway, day);


--
-- Name: log log_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.log
    ADD CONSTRAINT log_pkey PRIMARY KEY (gateway, shard, epoch, seq);


--
-- Name: mark mark_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.mark
    ADD CONSTRAINT mark_pkey PRIMARY KEY (name);


--
-- Name: migration migration_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);


--
-- Name: reindex reindex_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.reindex
    ADD CONSTRAINT reindex_pkey PRIMARY KEY (gateway);


--
-- Name: row_state row_state_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.row_state
    ADD CONSTRAINT row_state_pkey PRIMARY KEY (gateway, table_name, row_id);


--
-- Name: shard shard_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.shard
    ADD CONSTRAINT shard_pkey PRIMARY KEY (gateway, shard);


--
-- Name: shared_cursor shared_cursor_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.shared_cursor
    ADD CONSTRAINT shared_cursor_pkey PRIMARY KEY (gateway, cursor);


--
-- Name: spelled_name spelled_name_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.spelled_name
    ADD CONSTRAINT spelled_name_pkey PRIMARY KEY (namespace, folded);


--
-- Name: table_schema table_schema_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.table_schema
    ADD CONSTRAINT table_schema_pkey PRIMARY KEY (gateway, table_name);


--
-- Name: writer writer_pkey; Type: CONSTRAINT; Schema: lakesync; Owner: -
--

ALTER TABLE ONLY lakesync.writer
    ADD CONSTRAINT writer_pkey PRIMARY KEY (gateway, client_id);


--
-- Name: action_by_age; Type: INDEX; Schema: lakesync; Owner: -
--

CREATE INDEX action_by_age ON lakesync.action USING btree (gateway, touched_ms);


--
-- Name: action_by_key; Type: INDEX; Schema: lakesync; Owner: -
--

CREATE UNIQUE INDEX action_by_key ON lakesync.action USING btree (gateway, client_id, idempotency_key) WHERE (idempotency_key IS NOT NULL);


--
-- Name: batch_by_end; Type: INDEX; Schema: lakesync; Owner: -
--

CREATE INDEX batch_by_end ON lakesync.batch USING btree (gateway, shard, epoch, to_seq);


--
-- Name: batch_open; Type: INDEX; Schema: lakesync; Owner: -
--

CREATE UNIQUE INDEX batch_open ON lakesync.batch USING btree (gateway, shard) WHERE (confirmed_ms IS NULL);


--
-- Name: entry_by_change; Type: INDEX; Schema: lakesync; Owner: -
--

CREATE INDEX entry_by_change ON lakesync.entry USING btree (bucket, changed);


--
-- Name: erasure_by_client; Type: INDEX; Schema: lakesync; Owner: -
--

CREATE INDEX erasure_by_client ON lakesync.erasure USING btree (gateway, client_id);


--
-- Name: erasure_by_hlc; Type: INDEX; Schema: lakesync; Owner: -
--

CREATE INDEX erasure_by_hlc ON lakesync.erasure USING btree (gateway, hlc);


--
-- Name: erasure_by_row; Type: INDEX; Schema: lakesync; Owner: -
--

CREATE INDEX erasure_by_row ON lakesync.erasure USING btree (gateway, row_id, table_name);


--
-- Name: log_by_client; Type: INDEX; Schema: lakesync; Owner: -
--

CREATE INDEX log_by_client ON lakesync.log USING btree (gateway, client_id, hlc_high, hlc_low);


--
-- PostgreSQL database dump complete
--

\unrestrict fmenA3SWrli7UoeKbal7JHjcoiidOio6f9bGpny1AM3u7198mWhqPgowhRfyLck

