BEGIN TRANSACTION;
CREATE TABLE fedcore_accounts (
	population_id VARCHAR(128) NOT NULL, 
	unit VARCHAR(32), 
	relation VARCHAR(32), 
	epsilon DOUBLE, 
	delta DOUBLE, 
	rho_max DOUBLE, 
	delta_conv DOUBLE, 
	delta_extra DOUBLE, 
	seq INTEGER NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	currency VARCHAR(16) DEFAULT 'gdp' NOT NULL, 
	public_schema TEXT, 
	mode TEXT, 
	shares TEXT, 
	PRIMARY KEY (population_id)
);
INSERT INTO "fedcore_accounts" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782','client','add_or_remove_one',4.0,1.0e-06,3.51003648416198132942e-01,1.0e-06,0.0,13,'4c12bf6c1ab796000d608e3130ef783ebfdfe8249ab004bbe7e8ba9efdac6340','gdp','columns of the form',NULL,NULL);
CREATE TABLE fedcore_id_sketches (
	population_id VARCHAR(128) NOT NULL, 
	name TEXT NOT NULL, 
	"key" VARCHAR(16) NOT NULL, 
	version INTEGER NOT NULL, 
	manifest VARCHAR(64) NOT NULL, 
	clients INTEGER NOT NULL, 
	ids INTEGER NOT NULL, 
	parts INTEGER NOT NULL, 
	cells BLOB NOT NULL, 
	blocks BLOB NOT NULL, 
	undeclared TEXT NOT NULL, 
	declared TEXT NOT NULL, 
	PRIMARY KEY (population_id), 
	FOREIGN KEY(population_id) REFERENCES fedcore_accounts (population_id)
);
INSERT INTO "fedcore_id_sketches" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782','clients','654825466d8d2d12',1,'74f51701ab18b9b4781b8df57b366ba40ce29895b33a3f23f1150a248aa50963',40,40,1,X'789C5D4E090A0020085B07F4FFF7869592A3D140E6B1A9C0C5DC0FC5EBEA11CC3AE6EC2199BA9E0CF140303C56EE69320FB6EC47DEC4430D6F6CD199F8FF9BFCAFCA4FDCCB1FD47300BB344BD8',X'5ABD263B09670B3FE09EF3F29909B58D','[]','[]');
CREATE TABLE fedcore_ledger (
	only INTEGER NOT NULL, 
	id VARCHAR(32) NOT NULL, 
	schema INTEGER NOT NULL, 
	test BOOLEAN NOT NULL, 
	PRIMARY KEY (only)
);
INSERT INTO "fedcore_ledger" VALUES(1,'f37874f08ec94bfc9929e0c5856fde16',2,0);
CREATE TABLE fedcore_published (
	run_id VARCHAR(128) NOT NULL, 
	round INTEGER NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	attempt INTEGER NOT NULL, 
	shape TEXT NOT NULL, 
	data BLOB NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	PRIMARY KEY (run_id, round, name), 
	FOREIGN KEY(run_id) REFERENCES fedcore_runs (run_id)
);
INSERT INTO "fedcore_published" VALUES('old',1,'flat_mean',0,'[1,5]',X'EC220E00000000006E48090000000000DC42350000000000CA38060000000000F2E6140000000000','fe0fcebf7ea8a34924d2927364fe3f551768bc49b995f2d97508e85c57f46553');
INSERT INTO "fedcore_published" VALUES('old',2,'whitened_mean',0,'[1,5]',X'A4B2280000000000B8A118000000000014F215000000000087F1260000000000AB8E240000000000','8390c484a428be678d1141c401f7dabb770599dcae0aa7981fd03b1297f944a3');
INSERT INTO "fedcore_published" VALUES('old',3,'clusters_001',0,'[2,5]',X'30B4FCFFFFFFFFFF198A040000000000AABD060000000000DB690B0000000000CA2A0200000000009BE50C000000000088100700000000007DE3080000000000B956FBFFFFFFFFFF7802040000000000','d8dd9f908e5fe5178d89f5b88621089ce23e6f0ddf2c7d9e3096173b1b016ee5');
CREATE TABLE fedcore_records (
	population_id VARCHAR(128) NOT NULL, 
	seq INTEGER NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	run_id VARCHAR(128), 
	payload TEXT NOT NULL, 
	prev_hash VARCHAR(64) NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	PRIMARY KEY (population_id, seq), 
	FOREIGN KEY(population_id) REFERENCES fedcore_accounts (population_id)
);
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',1,'register',NULL,'{"at":1795929516.0349338}','0000000000000000000000000000000000000000000000000000000000000000','5e79bb6ce5719fb7f3061aa874fdfe072059020d75086595d0a663c963d56b45');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',2,'budget set',NULL,'{"at":1795929516.793065,"budget":{"delta":1e-06,"delta_conv":1e-06,"delta_extra":0.0,"epsilon":4.0,"rho_max":0.35100364841619813},"currency":"gdp","public_schema":"columns of the form","relation":"add_or_remove_one","unit":"client"}','5e79bb6ce5719fb7f3061aa874fdfe072059020d75086595d0a663c963d56b45','52aaa5f6f88dc21df0bf1e3c87f2e6256b45dea855061de91e94512660a05799');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',3,'spent before',NULL,'{"at":1795929516.8307085,"reason":"what the old ledger shows","rho":0.0125}','52aaa5f6f88dc21df0bf1e3c87f2e6256b45dea855061de91e94512660a05799','f319c4d3f646ca6d66dd499e772ea166eb133a9fc09218a138243295c8b2fea3');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',4,'shared ids',NULL,'{"at":1795929516.9588225,"reason":"the same people, for this test"}','f319c4d3f646ca6d66dd499e772ea166eb133a9fc09218a138243295c8b2fea3','45b25e0bf34f1c337d72a076c22f795bd189d0aae273798b8f367751f027ac01');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',5,'reserve','old','{"at":1795929518.6158073,"bound":{"manifest":"74f51701ab18b9b4781b8df57b366ba40ce29895b33a3f23f1150a248aa50963","run":"44d1488a0d5fe76a834ce19d78e0ab832b71a9872d711a308ca9b212235e77fa","version":1},"needs":[],"noise":"rounded gaussian 1","plan":[{"argument":"docs/privacy/histograms.md","composition":"one sum over all clients","delta":0.0,"name":"flat_mean","noise_multiplier":21.12339444664474,"rho":0.0011205792765040935,"round":1,"sensitivity":65536,"shape":[1,5]},{"argument":"docs/privacy/histograms.md","composition":"one sum over all clients","delta":0.0,"name":"whitened_mean","noise_multiplier":21.12339444664474,"rho":0.0011205792765040935,"round":2,"sensitivity":65536,"shape":[1,5]},{"argument":"docs/privacy/histograms.md","composition":"one cell per client: all cells cost one release","delta":0.0,"name":"clusters_001","noise_multiplier":4.404532215938596,"rho":0.025773323359594133,"round":3,"sensitivity":65536,"shape":[2,5]}],"plan_digest":"04d9483bf0a47d6a6f7f4fb8f58812afcf48243f7ace3b2f1c8ce602f97981fa","purpose":"training","relation":"add_or_remove_one","secure":true,"spare_delta":0.0,"spare_rho":0.025773323359594133,"spares":0,"statement":null,"unit":"client"}','45b25e0bf34f1c337d72a076c22f795bd189d0aae273798b8f367751f027ac01','8319872fed6996186b628b4f1c6178ed5e9a9a0ebe82a44785015ad05088d40a');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',6,'acquire','old','{"at":1795929518.8038282,"take_over":false,"token":1}','8319872fed6996186b628b4f1c6178ed5e9a9a0ebe82a44785015ad05088d40a','b09831d3a813fb80a63aaaa2b4703766bd417c724318bd249a50d538b2bc32e9');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',7,'charge','old','{"at":1795929519.6389587,"attempt":0,"delta":0.0,"name":"flat_mean","noise":"rounded gaussian 1","rho":0.0011205792765040935,"round":1,"token":1}','b09831d3a813fb80a63aaaa2b4703766bd417c724318bd249a50d538b2bc32e9','7df7298103ecc52d97e23523200237b7349f8ab6023dca93797b70fece0abcfa');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',8,'publish','old','{"at":1795929519.7308025,"attempt":0,"digest":"fe0fcebf7ea8a34924d2927364fe3f551768bc49b995f2d97508e85c57f46553","name":"flat_mean","round":1}','7df7298103ecc52d97e23523200237b7349f8ab6023dca93797b70fece0abcfa','325fe7b8bfc367e3f82dea6f1a4c23ca7ff0eaa98baef69133fdabd41d5bb9d9');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',9,'charge','old','{"at":1795929520.0286217,"attempt":0,"delta":0.0,"name":"whitened_mean","noise":"rounded gaussian 1","rho":0.0011205792765040935,"round":2,"token":1}','325fe7b8bfc367e3f82dea6f1a4c23ca7ff0eaa98baef69133fdabd41d5bb9d9','619542a6f9e04fcb0963be139f571f427aff525bedc5c17998915097fbc36c55');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',10,'publish','old','{"at":1795929520.1340857,"attempt":0,"digest":"8390c484a428be678d1141c401f7dabb770599dcae0aa7981fd03b1297f944a3","name":"whitened_mean","round":2}','619542a6f9e04fcb0963be139f571f427aff525bedc5c17998915097fbc36c55','ffce15652901ec8dfa73feca0e7e3e95ac7b1d2a71b52dbb2ae3ea9f16e91a90');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',11,'charge','old','{"at":1795929520.437141,"attempt":0,"delta":0.0,"name":"clusters_001","noise":"rounded gaussian 1","rho":0.025773323359594133,"round":3,"token":1}','ffce15652901ec8dfa73feca0e7e3e95ac7b1d2a71b52dbb2ae3ea9f16e91a90','b94d171c13ea9cb170d27bcdec37cb7da980b65aae1184e546add925c77feb70');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',12,'publish','old','{"at":1795929520.530427,"attempt":0,"digest":"d8dd9f908e5fe5178d89f5b88621089ce23e6f0ddf2c7d9e3096173b1b016ee5","name":"clusters_001","round":3}','b94d171c13ea9cb170d27bcdec37cb7da980b65aae1184e546add925c77feb70','6e90e6c7fbdf00edeec93210dcfcb4824d9d384e77bb839ff3ea1d4c05d80872');
INSERT INTO "fedcore_records" VALUES('a3ad40c4c6de4d719e6bc54d0d5be782',13,'finish','old','{"at":1795929520.8249445,"head":"d24f9b2e04ac30a9fd2e5c4bb964cfc84317dcbfaace380ca1ae15745dede568","status":"finished"}','6e90e6c7fbdf00edeec93210dcfcb4824d9d384e77bb839ff3ea1d4c05d80872','4c12bf6c1ab796000d608e3130ef783ebfdfe8249ab004bbe7e8ba9efdac6340');
CREATE TABLE fedcore_releases (
	run_id VARCHAR(128) NOT NULL, 
	round INTEGER NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	attempt INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	rho DOUBLE NOT NULL, 
	delta DOUBLE NOT NULL, 
	PRIMARY KEY (run_id, round, name, attempt), 
	FOREIGN KEY(run_id) REFERENCES fedcore_runs (run_id)
);
INSERT INTO "fedcore_releases" VALUES('old',1,'flat_mean',0,'published',1.12057927650409351258e-03,0.0);
INSERT INTO "fedcore_releases" VALUES('old',2,'whitened_mean',0,'published',1.12057927650409351258e-03,0.0);
INSERT INTO "fedcore_releases" VALUES('old',3,'clusters_001',0,'published',2.57733233595941330085e-02,0.0);
CREATE TABLE fedcore_runs (
	run_id VARCHAR(128) NOT NULL, 
	population_id VARCHAR(128) NOT NULL, 
	"plan" TEXT NOT NULL, 
	plan_digest VARCHAR(64) NOT NULL, 
	spares INTEGER NOT NULL, 
	used INTEGER NOT NULL, 
	spare_rho DOUBLE NOT NULL, 
	spare_delta DOUBLE NOT NULL, 
	secure BOOLEAN NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	token INTEGER NOT NULL, 
	holder TEXT, 
	expires DOUBLE, 
	purpose VARCHAR(32) DEFAULT 'training' NOT NULL, 
	noise VARCHAR(64) DEFAULT 'rounded gaussian 1' NOT NULL, 
	cohorts TEXT, 
	share VARCHAR(128), 
	PRIMARY KEY (run_id), 
	FOREIGN KEY(population_id) REFERENCES fedcore_accounts (population_id)
);
INSERT INTO "fedcore_runs" VALUES('old','a3ad40c4c6de4d719e6bc54d0d5be782','[{"argument":"docs/privacy/histograms.md","composition":"one sum over all clients","delta":0.0,"name":"flat_mean","noise_multiplier":21.12339444664474,"rho":0.0011205792765040935,"round":1,"sensitivity":65536,"shape":[1,5]},{"argument":"docs/privacy/histograms.md","composition":"one sum over all clients","delta":0.0,"name":"whitened_mean","noise_multiplier":21.12339444664474,"rho":0.0011205792765040935,"round":2,"sensitivity":65536,"shape":[1,5]},{"argument":"docs/privacy/histograms.md","composition":"one cell per client: all cells cost one release","delta":0.0,"name":"clusters_001","noise_multiplier":4.404532215938596,"rho":0.025773323359594133,"round":3,"sensitivity":65536,"shape":[2,5]}]','04d9483bf0a47d6a6f7f4fb8f58812afcf48243f7ace3b2f1c8ce602f97981fa',0,0,2.57733233595941330085e-02,0.0,1,'finished',1,NULL,NULL,'training','rounded gaussian 1',NULL,NULL);
CREATE INDEX ix_fedcore_records_run_id ON fedcore_records (run_id);
CREATE INDEX ix_fedcore_runs_population_id ON fedcore_runs (population_id);
CREATE INDEX ix_fedcore_runs_status ON fedcore_runs (population_id, status);
COMMIT;
