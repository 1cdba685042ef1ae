BEGIN TRANSACTION;
CREATE TABLE _lakesync_actions (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, due REAL NOT NULL,
    attempts INTEGER NOT NULL, body BLOB NOT NULL, data BLOB, code TEXT NOT NULL, message TEXT NOT NULL);
CREATE TABLE _lakesync_edits (
        number INTEGER PRIMARY KEY, tbl TEXT NOT NULL, row_id TEXT NOT NULL, status TEXT NOT NULL,
        delta BLOB NOT NULL, code TEXT NOT NULL, message TEXT NOT NULL);
INSERT INTO "_lakesync_edits" VALUES(1,'notes','new','waiting',X'5B7B226F70223A22494E53455254222C227461626C65223A226E6F746573222C22726F774964223A226E6577222C22636C69656E744964223A22616C696365222C22636F6C756D6E73223A5B7B22636F6C756D6E223A2274657874222C2276616C7565223A226E6577227D2C7B22636F6C756D6E223A226E222C2276616C7565223A327D5D2C22686C63223A22313137363633333439353231333833343234222C2264656C74614964223A2236393231626662623436366163623563353238616164663831313830633863303534343533396365363865323730643138336130616164306431396634646239227D5D','','');
CREATE TABLE _lakesync_known (
    tbl TEXT NOT NULL, row_id TEXT NOT NULL, generation INTEGER NOT NULL,
    stamps BLOB, whole BLOB, PRIMARY KEY (tbl, row_id)) WITHOUT ROWID;
CREATE TABLE "_lakesync_known_notes" (
    row_id TEXT PRIMARY KEY NOT NULL, generation INTEGER NOT NULL, stamps BLOB, whole BLOB) WITHOUT ROWID;
CREATE TABLE _lakesync_names (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE _lakesync_position (
        id INTEGER PRIMARY KEY CHECK (id = 1), value BLOB NOT NULL);
INSERT INTO "_lakesync_position" VALUES(1,X'5B22616C696365222C302C66616C73652C312C66616C73652C3131373636333334393532313338333432342C302C312C302C2267225D');
CREATE TABLE _lakesync_quiet (one INTEGER PRIMARY KEY);
CREATE TABLE _lakesync_tables (
    tbl TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL, schema BLOB NOT NULL,
    changes INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
INSERT INTO "_lakesync_tables" VALUES('notes',0,X'7B227461626C65223A226E6F746573222C22636F6C756D6E73223A5B7B226E616D65223A2274657874222C2274797065223A22737472696E67227D2C7B226E616D65223A226E222C2274797065223A226E756D626572227D5D2C22736F757263655461626C65223A6E756C6C2C227072696D6172794B6579223A5B22726F775F6964225D2C22736F667444656C657465223A747275652C2265787465726E616C4964436F6C756D6E223A6E756C6C7D',5);
CREATE TABLE "_lakesync_was_notes" (row_id TEXT PRIMARY KEY NOT NULL, at INTEGER NOT NULL, there INTEGER NOT NULL, "c_text", "c_n") WITHOUT ROWID;
INSERT INTO "_lakesync_was_notes" VALUES('gone',1795400230761,0,NULL,NULL);
INSERT INTO "_lakesync_was_notes" VALUES('new',1795400230746,1,'new',2);
INSERT INTO "_lakesync_was_notes" VALUES('other',1795400230753,0,NULL,NULL);
CREATE TABLE "notes" (row_id TEXT PRIMARY KEY NOT NULL, "text" TEXT, "n" NUMERIC);
INSERT INTO "notes" VALUES('new','new',3);
INSERT INTO "notes" VALUES('other','other',NULL);
CREATE INDEX _lakesync_edits_of ON _lakesync_edits (tbl, row_id);
CREATE INDEX _lakesync_edits_by ON _lakesync_edits (status, number);
CREATE TRIGGER "_lakesync_notes_insert" BEFORE INSERT ON "notes" WHEN NOT EXISTS (SELECT 1 FROM _lakesync_quiet) BEGIN INSERT INTO "_lakesync_was_notes" (row_id, at, there, "c_text", "c_n") SELECT row_id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), 1, "text", "n" FROM "notes" WHERE row_id = NEW.row_id AND NOT EXISTS (SELECT 1 FROM "_lakesync_was_notes" WHERE row_id = NEW.row_id); END;
CREATE TRIGGER "_lakesync_notes_inserted" AFTER INSERT ON "notes" WHEN NOT EXISTS (SELECT 1 FROM _lakesync_quiet) BEGIN SELECT RAISE(ABORT, 'lakesync: row_id of notes takes text of 1 to 512 characters') WHERE (typeof(NEW.row_id) <> 'text' OR length(NEW.row_id) NOT BETWEEN 1 AND 512 OR instr(NEW.row_id, char(0)));SELECT RAISE(ABORT, 'lakesync: column text of notes takes text') WHERE (typeof(NEW."text") = 'blob');SELECT RAISE(ABORT, 'lakesync: column n of notes takes a finite number') WHERE (typeof(NEW."n") IN ('text', 'blob') OR NEW."n" NOT BETWEEN -1.7976931348623157e308 AND 1.7976931348623157e308);INSERT INTO "_lakesync_was_notes" (row_id, at, there) SELECT NEW.row_id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), 0 WHERE NOT EXISTS (SELECT 1 FROM "_lakesync_was_notes" WHERE row_id = NEW.row_id);UPDATE "_lakesync_was_notes" SET at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) WHERE row_id = NEW.row_id;UPDATE _lakesync_tables SET changes = changes + 1 WHERE tbl = 'notes'; END;
CREATE TRIGGER "_lakesync_notes_move" BEFORE UPDATE OF row_id ON "notes" WHEN NEW.row_id IS NOT OLD.row_id AND NOT EXISTS (SELECT 1 FROM _lakesync_quiet) BEGIN SELECT RAISE(ABORT, 'lakesync: row_id of notes takes text of 1 to 512 characters') WHERE (typeof(NEW.row_id) <> 'text' OR length(NEW.row_id) NOT BETWEEN 1 AND 512 OR instr(NEW.row_id, char(0)));INSERT INTO "_lakesync_was_notes" (row_id, at, there, "c_text", "c_n") SELECT row_id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), 1, "text", "n" FROM "notes" WHERE row_id = NEW.row_id AND NOT EXISTS (SELECT 1 FROM "_lakesync_was_notes" WHERE row_id = NEW.row_id);INSERT INTO "_lakesync_was_notes" (row_id, at, there) SELECT NEW.row_id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), 0 WHERE NOT EXISTS (SELECT 1 FROM "_lakesync_was_notes" WHERE row_id = NEW.row_id); END;
CREATE TRIGGER "_lakesync_notes_updated" AFTER UPDATE ON "notes" WHEN NOT EXISTS (SELECT 1 FROM _lakesync_quiet) BEGIN SELECT RAISE(ABORT, 'lakesync: column text of notes takes text') WHERE NEW."text" IS NOT OLD."text" AND (typeof(NEW."text") = 'blob');SELECT RAISE(ABORT, 'lakesync: column n of notes takes a finite number') WHERE NEW."n" IS NOT OLD."n" AND (typeof(NEW."n") IN ('text', 'blob') OR NEW."n" NOT BETWEEN -1.7976931348623157e308 AND 1.7976931348623157e308);INSERT INTO "_lakesync_was_notes" (row_id, at, there, "c_text", "c_n") SELECT OLD.row_id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), 1, OLD."text", OLD."n" WHERE NOT EXISTS (SELECT 1 FROM "_lakesync_was_notes" WHERE row_id = OLD.row_id);UPDATE "_lakesync_was_notes" SET at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) WHERE row_id = OLD.row_id;UPDATE _lakesync_tables SET changes = changes + 1 WHERE tbl = 'notes'; END;
CREATE TRIGGER "_lakesync_notes_deleted" AFTER DELETE ON "notes" WHEN NOT EXISTS (SELECT 1 FROM _lakesync_quiet) BEGIN INSERT INTO "_lakesync_was_notes" (row_id, at, there, "c_text", "c_n") SELECT OLD.row_id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), 1, OLD."text", OLD."n" WHERE NOT EXISTS (SELECT 1 FROM "_lakesync_was_notes" WHERE row_id = OLD.row_id);UPDATE "_lakesync_was_notes" SET at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) WHERE row_id = OLD.row_id;UPDATE _lakesync_tables SET changes = changes + 1 WHERE tbl = 'notes'; END;
COMMIT;
